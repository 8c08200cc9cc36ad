"""The crew of ``crew.py`` under a guard: ``CREW_CARD=declined python examples/guarded_crew.py`` books and cancels."""

from __future__ import annotations

from crew import make_crew

from sagaspan import Guard, Policy

guard = Guard()

if __name__ == "__main__":
    crew = guard.wrap(  # the one line
        make_crew(), {"book_flight": Policy(compensate="cancel_flight"), "charge_card": Policy(critical=True)}
    )
    print(crew.kickoff().raw)
