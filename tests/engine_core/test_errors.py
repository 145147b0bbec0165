"""The list of what a fault may end names every error, and every error has what clients need."""

from __future__ import annotations

import re
from collections.abc import Iterator

from splitserve.engine_core import errors
from splitserve.engine_core.errors import SplitServeError


def kinds(kind: type[SplitServeError] = SplitServeError) -> Iterator[type[SplitServeError]]:
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from kinds(child)


def test_the_list_of_what_a_fault_ends_names_every_error_once() -> None:
    assert errors.__doc__ is not None
    named = re.findall(r"^    (\w+Error) {2,}\S", errors.__doc__, re.MULTILINE)
    assert sorted(named) == sorted(kind.__name__ for kind in kinds())


def test_every_error_has_a_code_and_a_status_that_says_it_failed() -> None:
    for kind in kinds():
        assert re.fullmatch(r"[a-z_]+", kind.code), kind
        assert 400 <= kind.status < 600, kind
