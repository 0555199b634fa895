"""Distil the published schemas of Kubernetes' custom resources into small ones for the tests.

Usage: scripts/distil_crds.py OUT_DIR FILE.yaml=VERSION_OF_ITS_PROJECT...

Each file is a CustomResourceDefinition as its project publishes it. Descriptions are dropped;
objects are closed, so that a misspelt field is an error instead of being pruned by the API server
in silence; templates of pods are cut out, as they are Kubernetes' own and are checked by its
schema.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

_KEPT = (
    "type",
    "enum",
    "format",
    "required",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "pattern",
)


def distil(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without words, closed, and without the inside of pods."""
    if _is_pod_template(schema):
        return {"type": "object", "x-pod-template": True}
    found: dict[str, Any] = {key: schema[key] for key in _KEPT if key in schema}
    if schema.get("x-kubernetes-int-or-string"):
        found = {"type": ["integer", "string"]}
    if "properties" in schema:
        found["properties"] = {name: distil(inner) for name, inner in schema["properties"].items()}
        found["additionalProperties"] = False
    if isinstance(schema.get("additionalProperties"), dict):
        found["additionalProperties"] = distil(schema["additionalProperties"])
    if "items" in schema:
        found["items"] = distil(schema["items"])
    return found


def _is_pod_template(schema: dict[str, Any]) -> bool:
    spec = schema.get("properties", {}).get("spec", {}).get("properties", {})
    return (
        "containers" in spec
        and "initContainers" in spec
        and "containers" in schema["properties"]["spec"].get("required", [])
    )


def main(out: str, *files: str) -> None:
    """Write one JSON per kind and version."""
    for word in files:
        name, _, version = word.rpartition("=")
        definition = yaml.safe_load(Path(name).read_text(encoding="utf-8"))["spec"]
        for served in definition["versions"]:
            schema = distil(served["schema"]["openAPIV3Schema"])
            schema["properties"] |= {"metadata": {"type": "object"}}
            schema["properties"].pop("status", None)
            kind = definition["names"]["kind"]
            content = {
                "apiVersion": f"{definition['group']}/{served['name']}",
                "kind": kind,
                "project": version,
                "schema": schema,
            }
            text = json.dumps(content, separators=(",", ":")) + "\n"
            Path(out, f"{kind.lower()}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
