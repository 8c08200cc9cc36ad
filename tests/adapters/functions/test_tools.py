"""``FunctionTools``: a model's tool calls against our own functions, in the words of each API."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import enum
import json
import re
import threading
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from sagaspan import BudgetExceeded, ConfigurationError, Guard, LoopDetected, NotApplied, RateLimited
from sagaspan_functions import FunctionTools
from tests.providers.apis import Api
from tests.providers.replies import Reply, ToolCall
from tests.providers.server import ModelServer

pytestmark = pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning")

DIALECTS = ("chat", "responses", "messages")


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    """Each of the three ways to ask for a tool."""
    return str(request.param)


@pytest.fixture
def api(dialect: str, model_server: ModelServer) -> Api:
    return Api(dialect, model_server)


def asking(dialect: str, *calls: tuple[str, Any]) -> dict[str, Any]:
    """What a model answers that asks for ``calls``, as a dict; their ids are c0, c1, ..."""
    found = [(f"c{number}", name, arguments) for number, (name, arguments) in enumerate(calls)]
    if dialect == "messages":
        blocks = [{"type": "tool_use", "id": id_, "name": name, "input": arguments} for id_, name, arguments in found]
        return {"role": "assistant", "content": [{"type": "text", "text": "Well."}, *blocks]}
    texts = [(id_, name, given if isinstance(given, str) else json.dumps(given)) for id_, name, given in found]
    if dialect == "chat":
        tool_calls = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in texts]
        return {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": tool_calls}}]}
    items = [{"type": "function_call", "id": f"fc_{i}", "call_id": i, "name": n, "arguments": a} for i, n, a in texts]
    return {"output": [{"type": "reasoning", "id": "rs_1", "summary": []}, *items]}


def answers(items: list[dict[str, Any]]) -> list[tuple[str, Any, bool]]:
    """The id, the text (parsed if it is JSON) and the error flag of every answer."""
    found = []
    for item in items:
        for part in item["content"] if item.get("role") == "user" else [item]:
            id_ = part.get("tool_call_id") or part.get("call_id") or part.get("tool_use_id")
            text = part.get("output") or part["content"]
            found.append((id_, json.loads(text) if text[:1] in '{["0123456789' else text, bool(part.get("is_error"))))
    return found


# -- schemas ---------------------------------------------------------------------------------------------------------


class Card(BaseModel):
    """A card."""

    number: str
    title: str = "Mr"


class Speed(enum.Enum):
    SLOW = "slow"
    FAST = "fast"


def test_schemas_come_from_signatures(guard: Guard) -> None:
    """Types, defaults, descriptions, and nothing that the guard fills itself."""

    @guard.tool("billing.pay", effect="write")
    def pay(
        amount: Annotated[float, Field(gt=0, description="in euros")],
        card: Card,
        speed: Literal["slow", "fast"] = "slow",
        copy: bool = False,
        *,
        idempotency_key: str,
    ) -> str:
        """Pay the bill."""
        return idempotency_key

    [schema] = FunctionTools(guard, [pay]).schemas("messages")
    assert schema["name"] == "billing_pay"
    assert schema["description"] == "Pay the bill."
    properties = schema["input_schema"]["properties"]
    assert set(properties) == {"amount", "card", "speed", "copy"}
    assert properties["amount"] == {"type": "number", "exclusiveMinimum": 0, "description": "in euros"}
    assert properties["speed"] == {"type": "string", "enum": ["slow", "fast"], "default": "slow"}
    assert schema["input_schema"]["required"] == ["amount", "card"]
    assert schema["input_schema"]["additionalProperties"] is False
    assert "title" in schema["input_schema"]["$defs"]["Card"]["properties"]


def test_each_api_declares_them_in_its_own_words(api: Api, guard: Guard) -> None:
    """The real SDK sends them, and the model's call comes back, runs, and is answered in the next request."""

    def add(left: int, right: int) -> int:
        """Add two numbers."""
        return left + right

    tools = FunctionTools(guard, [add])
    api.server.say(Reply(text="", tool_calls=(ToolCall(name="add", arguments={"left": 2, "right": 3}, id="call_7"),)))
    response = api.create(tools=tools.schemas(api.name))  # type: ignore[arg-type]
    assert "Add two numbers." in json.dumps(api.server.requests[0].body["tools"])
    with guard.run("r", id="r"):
        items = tools.run(response)
    assert answers(items) == [("call_7", 5, False)]
    name = "input" if api.name == "responses" else "messages"
    turn = {"chat": lambda: [response.choices[0].message], "responses": lambda: list(response.output),
            "messages": lambda: [{"role": "assistant", "content": response.content}]}[api.name]()  # fmt: skip
    api.arguments = {**api.arguments, name: [*api.arguments[name], *turn, *items]}
    assert api.text(api.create()) == "Hello there."
    assert "call_7" in json.dumps(api.server.requests[1].body[name][-1])


def test_what_a_model_cannot_fill_is_refused(guard: Guard) -> None:
    """When the tools are listed, not when a model tries."""

    def positional(amount: int, /) -> None: ...
    def many(*amounts: int) -> None: ...
    def twice(amount: int) -> None: ...

    for function in (positional, many):
        with pytest.raises(ConfigurationError, match="by name"):
            FunctionTools(guard, [function])
    with pytest.raises(ConfigurationError, match="two tools would be called 'twice'"):
        FunctionTools(guard, [twice, twice])
    with pytest.raises(ConfigurationError, match="no name"):
        FunctionTools(guard, [lambda: 1])
    with pytest.raises(ConfigurationError, match="takes functions"):
        FunctionTools(guard, [Card])
    with pytest.raises(ConfigurationError, match="names the tool 'twise'"):
        FunctionTools(guard, [twice], {"twise": {"effect": "read"}})
    with pytest.raises(ConfigurationError, match="parallel"):
        FunctionTools(guard, [twice], parallel=0)
    with pytest.raises(ConfigurationError, match="none of the APIs"):
        FunctionTools(guard, [twice]).schemas("completions")  # type: ignore[arg-type]


# -- calls -----------------------------------------------------------------------------------------------------------


def test_calls_are_guarded_and_answered_in_order(guard: Guard, dialect: str) -> None:
    """Each under its own id; a decorated function, and a plain one under the policies given here."""
    paid = []

    @guard.tool(effect="write")
    def pay(amount: float, card: str = "c1") -> dict[str, Any]:
        paid.append(amount)
        return {"paid": amount, "card": card}

    def look() -> str:
        return "all is well"

    tools = FunctionTools(guard, [pay, look], {"look": {"effect": "read"}})
    response = asking(dialect, ("pay", {"amount": 20}), ("look", {}), ("pay", {"amount": 20}))
    with guard.run("r", id="r"):
        items = tools.run(response)
    *first, again = answers(items)
    assert first == [("c0", {"paid": 20.0, "card": "c1"}, False), ("c1", "all is well", False)]
    assert (again[1]["status"], again[1]["result"]) == ("done", {"paid": 20.0, "card": "c1"})
    assert paid == [20.0]
    assert [call.tool for call in guard.runs.get("r").calls] == ["pay", "look"]
    with guard.run("r", id="r"):
        assert tools.run(response) == items
    assert paid == [20.0]


@pytest.mark.parametrize("is_async", [False, True])
def test_the_model_is_told_what_was_already_done(guard: Guard, is_async: bool) -> None:
    """And when; a read is told nothing of the kind, nor is who calls the function itself, nor a replay."""
    pay = guard.tool("pay", effect="write")(lambda n: f"paid {n}")
    booked = guard.tool("book", effect="write", key="order")(lambda order: order)
    tools = FunctionTools(guard, [pay, booked])
    response = asking(
        "chat", ("pay", {"n": 1}), ("pay", {"n": 1}), ("book", {"order": "o1"}), ("book", {"order": "o1"})
    )

    def run(incarnation: int) -> list[Any]:
        with contextlib.suppress(KeyboardInterrupt), guard.run("r", id="r", on_interrupt="hold"):
            answered = [text for _, text, _ in answers(tools.run(response))]
            assert pay(1) == "paid 1"
            raise KeyboardInterrupt
        return answered

    async def arun(incarnation: int) -> list[Any]:
        with contextlib.suppress(KeyboardInterrupt):
            async with guard.run("r", id="r", on_interrupt="hold"):
                answered = [text for _, text, _ in answers(await tools.arun(response))]
                raise KeyboardInterrupt
        return answered

    for incarnation in (1, 2):
        paid, paid_again, book, book_again = asyncio.run(arun(incarnation)) if is_async else run(incarnation)
        assert (paid, book) == ("paid 1", "o1")
        assert paid_again["result"] == "paid 1"
        assert re.fullmatch(
            r"already done at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ: it was not done again, .*", paid_again["message"]
        )
        if incarnation == 1:
            assert (book_again["status"], book_again["result"]) == ("done", "o1")
    with guard.run("other"):
        assert "already done" in answers(tools.run(asking("chat", ("book", {"order": "o1"}))))[0][1]["message"]


def test_the_model_is_told_that_it_goes_in_circles(guard: Guard) -> None:
    """From the third equal answer on, before anything is refused; what the body itself calls is not told here."""
    look = guard.tool("look", effect="read")(lambda: "same")

    @guard.tool(effect="read")
    def outer(n: int) -> str:
        return "".join(look() for _ in range(3))

    tools = FunctionTools(guard, [look, outer])
    with guard.run("r"):
        assert answers(tools.run(asking("chat", ("outer", {"n": 1}))))[0][1] == "samesamesame"
    with guard.run("s"):
        *before, (_, told, _) = answers(tools.run(asking("chat", *[("look", {})] * 3)))
    assert [text for _, text, _ in before] == ["same", "same"]
    assert told["result"] == "same"
    assert told["message"].startswith("This is call 3 of look")


def test_an_answer_without_calls_asks_for_nothing(guard: Guard, api: Api) -> None:
    """The list to append is empty, whole answer or message."""
    tools = FunctionTools(guard, [])
    response = api.create()
    assert tools.run(response) == []
    if api.name == "chat":
        assert tools.run(response.choices[0].message) == []
    with pytest.raises(ConfigurationError, match="no answer of"):
        tools.run({"data": []})


def test_arguments_are_what_the_function_says(guard: Guard, dialect: str) -> None:
    """Models write text and numbers; the function gets dates, decimals, enums and models."""
    got: list[Any] = []

    def order(when: dt.date, amount: Decimal, speed: Speed, card: Card, notes: list[str] | None = None) -> str:
        got.extend([when, amount, speed, card, notes])
        return "ordered"

    arguments = {"when": "2026-11-21", "amount": "2.50", "speed": "fast", "card": {"number": "1"}}
    [answer] = answers(FunctionTools(guard, [order]).run(asking(dialect, ("order", arguments))))
    assert answer == ("c0", "ordered", False)
    assert got == [dt.date(2026, 11, 21), Decimal("2.50"), Speed.FAST, Card(number="1"), None]


def test_results_become_text(guard: Guard, dialect: str) -> None:
    """Text as it is, everything else as JSON."""

    def card() -> Card:
        return Card(number="1")

    def day() -> list[Any]:
        return [dt.date(2026, 11, 21), Decimal("2.50"), "ä"]

    items = FunctionTools(guard, [card, day]).run(asking(dialect, ("card", {}), ("day", {})))
    assert [answer[1] for answer in answers(items)] == [{"number": "1", "title": "Mr"}, ["2026-11-21", "2.50", "ä"]]


@pytest.mark.parametrize(
    ("name", "arguments", "error", "says"),
    [
        ("buy", {}, "UnknownTool", "there is no tool 'buy'; there are pay"),
        ("pay", {"amount": "lots"}, "InvalidArguments", "amount: "),
        ("pay", {}, "InvalidArguments", "amount: Field required"),
        ("pay", {"amount": 1, "tip": 2}, "InvalidArguments", "tip: "),
        ("pay", "{amount: 1}", "InvalidArguments", "no JSON"),
        ("pay", "[1]", "InvalidArguments", "not an object"),
    ],
)
def test_a_call_that_makes_no_sense_is_told_to_the_model(
    guard: Guard, dialect: str, name: str, arguments: Any, error: str, says: str
) -> None:
    """As data under the call's id, so that the conversation goes on; nothing runs and nothing is recorded."""

    def pay(amount: float) -> str:
        raise AssertionError("it ran")

    if dialect == "messages" and isinstance(arguments, str):
        pytest.skip("Anthropic's arguments are an object")
    with guard.run("r", id="r"):
        [answer] = answers(FunctionTools(guard, [pay]).run(asking(dialect, (name, arguments))))
    assert answer[0] == "c0"
    assert (answer[1]["status"], answer[1]["error"]) == ("refused", error)
    assert says in answer[1]["message"]
    assert answer[2] is (dialect == "messages")
    assert guard.runs.get("r").calls == ()


# -- errors ----------------------------------------------------------------------------------------------------------


class Declined(NotApplied):
    """The bank says no."""


def test_errors_of_tools_are_data(guard: Guard, dialect: str) -> None:
    """What did not happen may be tried otherwise; what may have happened must not be tried again."""

    @guard.tool(effect="write")
    def decline(card: str) -> None:
        raise Declined(f"{card} is empty")

    @guard.tool(effect="write")
    def lose(card: str) -> None:
        raise TimeoutError("no answer")

    @guard.tool(effect="read")
    def look(card: str) -> None:
        raise TimeoutError("no answer")

    tools = FunctionTools(guard, [decline, lose, look])
    asked = asking(dialect, *((name, {"card": "c1"}) for name in ("decline", "lose", "look", "lose")))
    with guard.run("r", id="r"):
        items = tools.run(asked)
    told = [data for _, data, _ in answers(items)]
    records = {call.tool: call.id for call in guard.runs.get("r").calls}
    assert told[0] == {"status": "failed", "error": "Declined", "record": records["decline"], "message": "c1 is empty"}
    assert told[1]["status"] == "unknown"
    assert told[1]["retry"] == "forbidden"
    assert "retry" not in told[2]
    assert (told[3]["status"], told[3]["error"], told[3]["retry"]) == ("unknown", "OutcomeUnknown", "forbidden")
    assert all(is_error is (dialect == "messages") for _, _, is_error in answers(items))


def test_refusals_are_data(store_url: str, dialect: str) -> None:
    """With when to try again, where there is such a time."""
    with Guard(store_url) as guard:

        @guard.tool(rate="1/minute")
        def look(page: int) -> str:
            return "a page"

        tools = FunctionTools(guard, [look])
        first, second = answers(tools.run(asking(dialect, ("look", {"page": 1}), ("look", {"page": 2}))))
    assert first[1] == "a page"
    assert second[1]["error"] == RateLimited.__name__
    assert (second[1]["status"], second[1]["retry"]) == ("refused", "later")
    assert 0 < second[1]["retry_after"] <= 60


def test_what_ends_the_run_is_raised(store_url: str, dialect: str) -> None:
    """A budget that is used up, a loop that goes on, a failure that is critical, an interruption."""
    with Guard(store_url, budgets={"tool:pay": "1 calls"}) as guard:

        @guard.tool
        def pay(amount: int) -> None: ...

        @guard.tool(loop=1)
        def look() -> str:
            return "the same"

        @guard.tool(critical=True)
        def vital() -> None:
            raise NotApplied("no")

        @guard.tool
        def stop() -> None:
            raise KeyboardInterrupt

        tools = FunctionTools(guard, [pay, look, vital, stop])
        with pytest.raises(BudgetExceeded), guard.run("r"):
            tools.run(asking(dialect, ("pay", {"amount": 1}), ("pay", {"amount": 2})))
        with pytest.raises(LoopDetected) as caught, guard.run("r"):
            tools.run(asking(dialect, *[("look", {})] * 9))
        assert caught.value.stops
        with pytest.raises(NotApplied), guard.run("r"):
            tools.run(asking(dialect, ("vital", {})))
        with pytest.raises(KeyboardInterrupt), guard.run("r"):
            tools.run(asking(dialect, ("stop", {})))


# -- at once, and in a loop ------------------------------------------------------------------------------------------


def test_calls_of_one_answer_can_run_at_once(guard: Guard, dialect: str) -> None:
    """In threads that know the run; the answers keep their order."""
    together = threading.Barrier(3, timeout=60)

    @guard.tool
    def meet(number: int) -> int:
        together.wait()
        return number

    tools = FunctionTools(guard, [meet], parallel=3)
    with guard.run("r", id="r"):
        items = tools.run(asking(dialect, *(("meet", {"number": number}) for number in range(3))))
    assert [answer[:2] for answer in answers(items)] == [("c0", 0), ("c1", 1), ("c2", 2)]
    assert len(guard.runs.get("r").calls) == 3


def test_an_error_waits_for_those_beside_it(guard: Guard, dialect: str) -> None:
    """Nobody is left running behind the error that ends the run."""
    met, ended = threading.Barrier(2, timeout=60), []

    @guard.tool(critical=True)
    def fail() -> None:
        met.wait()
        raise NotApplied("no")

    @guard.tool
    def go_on() -> None:
        met.wait()
        ended.append(1)

    tools = FunctionTools(guard, [fail, go_on], parallel=2)
    with pytest.raises(NotApplied), guard.run("r"):
        tools.run(asking(dialect, ("fail", {}), ("go_on", {})))
    assert ended == [1]


@pytest.mark.parametrize("parallel", [1, 2])
async def test_asynchronous_functions(guard: Guard, dialect: str, parallel: int) -> None:
    """Both kinds, by ``arun``; an async one is refused by ``run``."""

    @guard.tool
    async def wait_for(number: int) -> int:
        await asyncio.sleep(0)
        return number

    @guard.tool
    def look() -> str:
        return threading.current_thread().name

    @guard.tool
    async def fail() -> None:
        raise NotApplied("no")

    tools = FunctionTools(guard, [wait_for, look, fail], parallel=parallel)
    asked = asking(dialect, ("wait_for", {"number": 7}), ("look", {}), ("fail", {}), ("buy", {}))
    async with guard.run("r", id="r"):
        found = answers(await tools.arun(asked))
    assert found[0] == ("c0", 7, False)
    assert found[1][1] != threading.main_thread().name
    assert [data["status"] for _, data, _ in found[2:]] == ["failed", "refused"]
    assert len(guard.runs.get("r").calls) == 3
    with pytest.raises(ConfigurationError, match="arun"):
        tools.run(asked)


@pytest.mark.parametrize(
    "arguments",
    [
        '{"amount":' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"amount": 1, "note": ' + "[" * 95 + "]" * 95 + "}",
        '{"amount": 1, "note": "\\ud83d"}',
        '{"amount": 1, "note": {"\\ud83d": 1}}',
        '{"amount": NaN}',
        '{"amount": -1e999}',
        '{"amount": "nan"}',
        '{"amount": 1, "note": [Infinity]}',
        '{"amount": 1, "amount": 1000}',
        '{"amount": 1' + "0" * 5000 + "}",
    ],
    ids=["deep", "deeper", "emoji", "key", "nan", "huge", "text", "inside", "twice", "digits"],
)
def test_odd_json_of_a_model_is_told_to_it(guard: Guard, arguments: str) -> None:
    """It neither ends the run nor gets past an approval: nothing ran, and the model may write it anew."""
    paid: list[float] = []

    @guard.tool(effect="write", approve="amount > 100")
    def pay(amount: float, note: Any = None) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    tools = FunctionTools(guard, [pay])
    with guard.run("r", id="r"):
        [(_, told, _)] = answers(tools.run(asking("chat", ("pay", arguments))))
        assert (told["status"], told["error"]) == ("refused", "InvalidArguments")
        [(_, done, _)] = answers(tools.run(asking("chat", ("pay", {"amount": 1.5, "note": "\U0001f600"}))))
    assert done == "paid"
    assert paid == [1.5]


def test_what_is_no_number_is_refused_of_an_api_that_parses_it(guard: Guard) -> None:
    """Anthropic's SDK hands over objects: they are looked at too."""
    look = guard.tool("look", effect="read")(lambda note: note)
    tools = FunctionTools(guard, [look])
    [(_, told, is_error)] = answers(tools.run(asking("messages", ("look", {"note": float("nan")}))))
    assert is_error
    assert told["error"] == "InvalidArguments"
