"""The proof of ``wal`` in small, and that it notices what it is there to notice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.proofs.wal import check_prefix, check_world, cuts, forgotten, live_on, prove, unclaimed
from tests.proofs.wal_record import Recording, record
from tests.proofs.wal_shop import Effect


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A recorded day."""
    return record("normal", "this", tmp_path_factory.mktemp("day") / "recorded")


@pytest.mark.parametrize(("day", "every"), [("quiet", 60), ("busy", 80)])
def test_a_part_of_the_proof(day: str, every: int) -> None:
    """Some worlds of both durabilities, after a cut and another boot; in all of them every effect has its claim."""
    figures, wrong = prove(every=every, days=[day], boots=["earlier"], say=lambda *_, **__: None)
    assert wrong == []
    assert all(figure.opened > 10 and figure.lived > 2 for figure in figures)
    assert [figure.in_doubt_again > 0 for figure in figures] == [True, False]


def test_a_crowd_writes_on_while_it_is_flushed(tmp_path: Path) -> None:
    """Else a busy day would show no more than a quiet one: some flush was for less than was written when it ended."""
    day = record("normal", "this", tmp_path / "recorded", "busy")
    shared = [event for event in day.events if event.durable and not event.writes]
    assert any(event.durable < event.frames for event in shared)
    effects = [number for number, event in enumerate(day.events) if event.effect is not None]
    assert any(shared[0] in day.events[:number] for number in effects)
    careless = [replace(event, durable=0) if event in shared else event for event in day.events]
    worlds = cuts(replace(day, events=tuple(careless)))
    assert not any(unclaimed(day, cut) for cut in cuts(day))
    assert any(unclaimed(day, cut) for cut in worlds)


def test_a_claim_that_is_not_synced_is_noticed(day: Recording, tmp_path: Path) -> None:
    """Were claims not on disk before the body, a cut could leave an effect without one."""
    careless = replace(
        day,
        events=tuple(
            replace(event, durable=0 if "claim" in [row.event for row in event.rows] else event.durable)
            for event in day.events
        ),
    )
    cut = max((cut for cut in cuts(careless) if cut not in cuts(day)), key=lambda cut: (cut.events, -cut.frames))
    with pytest.raises(AssertionError, match="happened without a claim"):
        live_on(careless, cut, tmp_path)


def test_a_result_that_was_on_disk_is_not_forgotten(day: Recording) -> None:
    """Every answered call of a cut's past is known, if something was synced since; some of the last are not."""
    lost = [forgotten(day, cut) for cut in cuts(day)]
    assert any(lost)
    assert max(map(len, lost)) <= 2  # a call, and the one that it was made in


def test_a_ledger_that_is_no_prefix_is_noticed(day: Recording, tmp_path: Path) -> None:
    """A committed row that is missing, or another one in its place, is a violation."""
    check_prefix(day, len(day.wal), tmp_path)
    number = next(n for n, event in enumerate(day.events) if event.rows)
    for rows in ((), (replace(day.events[number].rows[0], detail="something else"),)):
        events = [*day.events]
        events[number] = replace(events[number], rows=rows)
        with pytest.raises(AssertionError, match="bytes of the next"):
            check_prefix(replace(day, events=tuple(events)), len(day.wal), tmp_path)


def test_an_effect_that_came_twice_is_noticed(day: Recording) -> None:
    """So is one that never came, an undo before its action, and an undo out of order."""
    effects = [event.effect for event in day.events if event.effect is not None]
    check_world(effects)
    refund = next(effect for effect in effects if effect.what == "refund")
    release = next(effect for effect in effects if effect.what == "release")
    swapped = [{refund: release, release: refund}.get(effect, effect) for effect in effects]
    wrong: list[list[Effect]] = [
        [*effects, effects[0]],
        effects[1:],
        [refund, *(effect for effect in effects if effect != refund)],
        swapped,
    ]
    for world in wrong:
        with pytest.raises(AssertionError):
            check_world(world)
