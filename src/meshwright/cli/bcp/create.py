"""`meshwright bcp create`: a workspace."""

from __future__ import annotations

from meshwright.cli.bcp.flags import (
    AceFlag,
    DryRunFlag,
    JsonFlag,
    OrgFlag,
    TargetArgument,
    TeamFlag,
    storage,
)

__all__ = ["create"]


def create(
    target: TargetArgument,
    dry_run: DryRunFlag = False,
    org: OrgFlag = None,
    team: TeamFlag = None,
    ace: AceFlag = None,
    json_output: JsonFlag = False,
) -> None:
    """Make a workspace. One of that name that is there is not made again.

    Jobs mount it by `--mount workspace=ID:/mount/data`. A dataset is made by its upload, a result
    by its job.

    Prints its id and name.

    Examples:

      meshwright bcp create workspace=slimpajama

      meshwright bcp create workspace=slimpajama --ace my-ace --json

      meshwright bcp create workspace=slimpajama --dry-run
    """
    import json
    import shlex

    from meshwright.platforms.base_command.storage import Target

    made = storage(org=org, team=team, ace=ace, dry_run=dry_run).create(Target.of(target))
    if json_output:
        print(json.dumps(made, indent=2))
    elif dry_run:
        print(shlex.join(made["command"]))
    else:
        print(
            f"{made.get('id')} "
            f" {made.get('name')}{'' if made['created'] else ': was there already'}"
        )
