"""``sagaspan prune``: forget what is over."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

import click

from sagaspan._checks import masked
from sagaspan.cli._options import Duration, Settings, common_options, confirm, pass_settings
from sagaspan.cli._render import emit_json, say, visible

if TYPE_CHECKING:
    from sagaspan import Pruned

_PROGRESS_SECONDS: Final = 2.0
_KEPT: Final = {
    "open": "open, in doubt or waiting for a person",
    "key": "with a business key that somebody may rely on; --forget-keys forgets them too",
    "recent": "ended more recently than they began",
}


@click.command()
@click.option("--older-than", type=Duration("s", "d"), required=True, help="Settled for so long, e.g. 90d.")
@click.option("--forget-keys", is_flag=True, help="Also runs with done calls under business keys.")
@click.option("--namespace", help="Only this namespace; default: all.")
@click.option("--vacuum", is_flag=True, help="Give the room back to the disk; agents wait meanwhile.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask; needed where nobody can be asked, in cron, say.")
@common_options
@pass_settings
def prune(
    settings: Settings,
    older_than: float,
    forget_keys: bool,
    namespace: str | None,
    vacuum: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Forget runs, and calls outside a run, that were settled long ago, with their history.

    Never what is open, in doubt, held or needs a person. What is forgotten is new when it comes again: the same run id
    is a new run, and a forgotten business key is called again. Agents go on meanwhile.
    """
    from sagaspan._prune import Pruner, cutoff_us

    if not (yes or dry_run or sys.stdin.isatty()):
        raise click.UsageError("nobody can be asked here: add --yes, or --dry-run to only count")
    store = settings.open_store()
    if not (yes or dry_run):
        confirm(f"Forget what was settled {older_than:g} s ago in {masked(store.url)}?")
    pruner = Pruner(
        store, namespace=namespace, before_us=cutoff_us(older_than), forget_keys=forget_keys, progress=_Progress(),
    )  # fmt: skip
    done = pruner(dry_run=dry_run)
    if vacuum and not dry_run:
        store.compact()
    if settings.as_json:
        emit_json(done)
    else:
        _say(done, dry_run=dry_run, vacuum=vacuum, store=masked(store.url))


class _Progress:
    """One line every two seconds, on standard error."""

    def __init__(self) -> None:
        self._due = time.monotonic() + _PROGRESS_SECONDS

    def __call__(self, so_far: Pruned) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _PROGRESS_SECONDS
            click.echo(f"{_counts(so_far)} so far", err=True)


def _counts(done: Pruned) -> str:
    return f"{done.runs:,} runs, {done.calls:,} calls"


def _say(done: Pruned, *, dry_run: bool, vacuum: bool, store: str) -> None:
    say(f"{'Would forget' if dry_run else 'Forgot'} {_counts(done)}.")
    for reason, count in sorted(done.kept.items()):
        say(f"Kept {count:,} {_KEPT[reason]}.")
    if dry_run or not (done.runs or done.calls):
        return
    say("The ids and keys of what was forgotten are new when they come again.")
    if done.spare_bytes and not vacuum:
        say(f"{visible(store)} has {done.spare_bytes / 1e6:.1f} MB of room that new records use first. To give it back "
            "to the disk, when agents can wait: sagaspan prune --vacuum with the same options")  # fmt: skip
