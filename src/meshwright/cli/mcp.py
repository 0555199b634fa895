"""`meshwright mcp`: the tools of an agent, over the Model Context Protocol."""

from __future__ import annotations

import json
import traceback
from typing import TYPE_CHECKING, Any

from meshwright.api.agents import TOOLS, answer, input_schema, sentence, tool_named
from meshwright.cli.options import command, option
from meshwright.platforms.hidden import hide
from meshwright.values.errors import MeshwrightError, load_extra

if TYPE_CHECKING:
    from mcp.server import Server

__all__ = ["mcp"]

_ABOUT = (
    "Meshwright predicts how a language model trains or is served on a cluster. Predictions come"
    " with 80 % intervals and with what they stand on; pass both on. A layout that a tool returns"
    " can be given to the others as it is."
)


@command
def mcp(
    list_tools: bool = option(
        False, "Print the tools with their inputs as JSON, and end.", "--list"
    ),
) -> None:
    """Serve plan, explain, why_oom, compare, export and serving_plan to agents, by the Model
    Context Protocol.

    An agent starts this command and talks to it by stdin and stdout; docs/mcp.md has the lines for
    the settings of common agents. Inputs are the fields of the requests that the commands take, and
    answers are those of --json, cut to what can be read at once. Every figure has its interval and
    its sources. What a command refuses is an error of the tool, in one sentence.

    Prints nothing beside the protocol. Files are read where an argument names them, and none is
    written; nothing is sent over a network. Needs the protocol's SDK: pip install
    'meshwright[mcp]'.

    Examples:

      meshwright mcp

      meshwright mcp --list

      meshwright mcp --list > tools.json
    """
    if list_tools:
        tools = [
            {"name": one.name, "description": one.description, "inputs": input_schema(one)}
            for one in TOOLS
        ]
        print(json.dumps(tools, indent=2))
        return
    load_extra("mcp", "mcp")
    import anyio

    anyio.run(_serve)


async def _serve() -> None:
    from mcp.server.stdio import stdio_server

    server = make_server()
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def make_server() -> Server[Any]:
    """Return a server with all tools; it is not started."""
    import mcp_types as types
    from anyio import to_thread
    from mcp.server import Server

    import meshwright

    async def list_them(_context: Any, _params: Any) -> types.ListToolsResult:
        reads = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=one.name,
                    description=one.description,
                    input_schema=input_schema(one),
                    annotations=reads,
                )
                for one in TOOLS
            ]
        )

    async def call(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments = dict(params.arguments or {})
        try:
            # a search takes seconds of the processor: the protocol is answered meanwhile
            found = await to_thread.run_sync(_found, params.name, arguments)
        except Exception as error:
            said = types.TextContent(type="text", text=hide(_said(error)))
            return types.CallToolResult(content=[said], is_error=True)
        shown = hide(json.dumps(found))
        text = types.TextContent(type="text", text=shown)
        return types.CallToolResult(content=[text], structured_content=json.loads(shown))

    return Server(
        "meshwright",
        version=meshwright.__version__,
        instructions=_ABOUT,
        on_list_tools=list_them,
        on_call_tool=call,
    )


def _said(error: Exception) -> str:
    """Return what went wrong in a line; of a fault of ours the rest goes to stderr."""
    if isinstance(error, MeshwrightError):
        return sentence(error)
    traceback.print_exception(error)
    return f"a fault of meshwright, not of the question: {type(error).__name__}: {error}"


def _found(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a tool's answer in the types of JSON."""
    found: dict[str, Any] = json.loads(json.dumps(answer(tool_named(name), arguments)))
    return found
