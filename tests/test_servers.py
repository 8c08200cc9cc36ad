"""The servers of the tests: without one in the environment a test is skipped, or red where none may be."""

from __future__ import annotations

import pytest

from tests import servers


@pytest.mark.parametrize("variable", [servers.POSTGRES, servers.MARIADB])
def test_without_a_server_a_test_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """Which names the variable, and the command that starts one."""
    monkeypatch.setattr(servers, "_URLS", {variable: None})
    monkeypatch.setattr(servers, "_IS_REQUIRED", False)
    with pytest.raises(pytest.skip.Exception, match=rf"{variable} names no server; python -m tests.servers"):
        servers.url_of_server(variable)


@pytest.mark.parametrize("variable", [servers.POSTGRES, servers.MARIADB])
def test_where_nothing_may_be_skipped_it_is_red(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """A gate without its servers would prove nothing, and look as if it had."""
    monkeypatch.setattr(servers, "_URLS", {variable: None})
    monkeypatch.setattr(servers, "_IS_REQUIRED", True)
    with pytest.raises(pytest.fail.Exception, match=variable):
        servers.url_of_server(variable)
