"""Tests name the sentences that they expect: the sentences themselves stand in tests/support/wording."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SENTENCE = re.compile(r"(?<![\w#.$'-])[A-Za-z][a-z]*(?:'[a-z]+)?(?: [a-z]+(?:'[a-z]+)?){2,}(?![\w'])")
"""Three plain words in a row."""
READS = {"startswith", "endswith", "count", "search", "findall", "fullmatch"}
"""Functions whose arguments are compared with a text."""


def compared(node: ast.AST) -> Iterator[ast.Name | str]:
    """Yields the texts and names that an expression compares; keys, indices and other functions' arguments are none."""
    match node:
        case ast.Name():
            yield node
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(part.value if isinstance(part, ast.Constant) else "..." for part in parts)
        case ast.Subscript(value=inner):
            yield from compared(inner)
        case ast.Call(func=function, args=arguments):
            yield from compared(function)
            if isinstance(function, ast.Attribute) and function.attr in READS:
                for argument in arguments:
                    yield from compared(argument)
        case ast.Dict(values=values):
            for value in values:
                yield from compared(value)
        case _:
            for child in ast.iter_child_nodes(node):
                yield from compared(child)


def expected(tree: ast.AST) -> Iterator[ast.Name | str]:
    """Yields the texts and names in a tree's assertions, in its other comparisons, and in its ``match=``."""
    for node in ast.walk(tree):
        match node:
            case ast.Assert(test=place) | ast.keyword(arg="match", value=place):
                yield from compared(place)
            case ast.Compare():
                yield from compared(node)


def cells(test: ast.FunctionDef) -> Iterator[str]:
    """Yields the texts of a test's parameters that its assertions compare."""
    used = {name.id for name in expected(test) if isinstance(name, ast.Name)}
    for mark in test.decorator_list:
        if not (isinstance(mark, ast.Call) and len(mark.args) == 2 and isinstance(mark.args[1], ast.List)):
            continue
        names, rows = mark.args
        single = isinstance(names, ast.Constant)
        columns = [name.value for name in ([names] if single else getattr(names, "elts", ()))]
        for row in rows.elts:
            for column, cell in zip(columns, [row] if single else getattr(row, "elts", ()), strict=False):
                if column in used:
                    yield from (text for text in compared(cell) if isinstance(text, str))


def sentences(source: str) -> set[str]:
    """Returns the sentences that a test module expects in its own words."""
    tree = ast.parse(source)
    texts = {text for text in expected(tree) if isinstance(text, str)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            texts.update(cells(node))
    return {text for text in texts if SENTENCE.search(text)}


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("assert said.endswith('no layer is to blame')", 1),
        ("assert said.startswith(f'{n} layers are to blame')", 1),
        ("notes = [note for note in notes if 'judged as two' in note]", 1),
        ("with raises(BadInput, match='no such layer'): pass", 1),
        ("@mark(('code', 'said'), [('no such layer', 'no such layer')])\ndef test(): assert said in run(code)", 1),
        ("assert figures['layers that are high'] == by_name('layers that are high')", 0),
        ("assert said == wording.NO_SUCH_LAYER", 0),
        ("assert outcome == 'build failed'", 0),
    ],
)
def test_a_sentence_in_an_assertion_is_found(code, count):
    assert len(sentences(code)) == count


def test_no_sentence_is_expected_outside_the_wording():
    """A text that the test itself plants, such as the message of its own error, is a constant of its module."""
    found = {str(path): sentences(path.read_text(encoding="utf-8")) for path in sorted(TESTS.rglob("test_*.py"))}
    assert {path: texts for path, texts in found.items() if texts} == {}, "name them in tests/support/wording"
