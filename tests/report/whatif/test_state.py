from __future__ import annotations

from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.report.whatif_page.state import DEFAULTS, WhatIf, query_of, read_state
from meshwright.values.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"modle": "x"}, "'modle' is no known word of the address; did you mean 'model'?"),
        ({"seq": "many"}, "seq='many': expected a whole number"),
        ({"usd": "dear"}, "usd='dear': expected a number"),
        (
            {"cluster": "/etc/passwd"},
            ("cluster='/etc/passwd': the page takes up to four kinds of chips with their counts"),
        ),
        ({"cluster": "local"}, "cluster='local': the page takes up to four kinds of chips"),
        ({"cluster": "a800:1,h800"}, "cluster='a800:1,h800': the page takes up to four kinds"),
        ({"what": "bake"}, "'bake' is no known question"),
        ({"clusters": "h100"}, "clusters='h100': expected kinds of chips with their counts"),
        ({"clusters": ",".join(["h100:8"] * 13)}, "clusters: at most 12 are compared at once"),
        ({"layout": "tp"}, "layout 'tp': expected key=value, such as tp=8"),
        ({"layout": " ,"}, "layout: expected key=value words such as tp=8,pp=4,mbs=1"),
        ({"tokens": "many"}, "tokens"),
        ({"layout": "tp=1," * 1000}, "layout: 5000 letters; at most 2000 are read"),
    ],
)
def test_a_word_that_is_none_is_one_line(words: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_state(words)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@given(
    st.builds(
        WhatIf,
        model=st.sampled_from(
            ["llama3-8b", "layers=4,hidden=256,heads=4,vocab=1000", "mixtral-8x7b"]
        ),
        cluster=st.sampled_from(["h100:8", "a100-80:4096", "a800:128,h800:160"]),
        what=st.sampled_from(["train", "serve", "compare"]),
        finetune=st.sampled_from(["", "lora"]),
        seq=st.integers(1, 2**20),
        gbs=st.integers(1, 2**14),
        layout=st.sampled_from(["tp=8", "pp=2,layers_per_stage=3+5", "tp=2,recompute=full"]),
        tokens=st.sampled_from(["", "15T", "300B"]),
        usd=st.none() | st.floats(0.01, 50, allow_nan=False),
    )
)
def test_an_address_is_read_back_as_it_was(state: WhatIf) -> None:
    assert read_state(dict(parse_qsl(query_of(state), keep_blank_values=True))) == state


def test_a_plus_that_was_typed_is_one() -> None:
    assert (
        read_state(dict(parse_qsl("layout=pp=2,layers_per_stage=3+5"))).layout
        == "pp=2,layers_per_stage=3+5"
    )


def test_what_is_as_by_default_is_left_out() -> None:
    assert query_of(DEFAULTS) == ""
    assert query_of(read_state({"gbs": "64", "seq": "8192"})) == "gbs=64"
