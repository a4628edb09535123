"""The families of the nano task set, as data: what a function shall return, in two wordings, and the expression that does.

A form has one parameter, its placeholder: `{k}` a number or `{a}` a two-letter word.
A family's forms are its sub-operators; each is a plausible mistake for the others. Slips are mistakes that answer no form.
"""

from collections.abc import Sequence

import msgspec


class Form(msgspec.Struct, frozen=True):
    """One sub-operator: what is wanted in two wordings, and its expression."""

    phrase: str
    other_phrase: str
    expression: str


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """Functions of one shape. Example: `f(xs)` returns the items above 37."""

    name: str
    argument: str
    """Name of the only argument: `xs` a list, `s` a text, `n` a number."""
    inputs: str
    """What the tests call it with; a name of `gagar.nano.inputs.INPUTS`."""
    numbers: tuple[int, int] = (10, 99)
    """Range of its number parameters, both ends included."""
    forms: tuple[Form, ...]
    slips: tuple[str, ...]


def _compared(phrase: str, other_phrase: str, expression: str) -> tuple[Form, ...]:
    """A form for each comparison; `{c}` stands for it in words, `{op}` in code."""
    comparisons = (
        ("above {k}", "greater than {k}", "> {k}"),
        ("below {k}", "less than {k}", "< {k}"),
        ("of at least {k}", "not below {k}", ">= {k}"),
        ("of at most {k}", "not above {k}", "<= {k}"),
    )
    return tuple(
        Form(phrase.replace("{c}", c), other_phrase.replace("{c}", other), expression.replace("{op}", op))
        for c, other, op in comparisons
    )


def _forms(*rows: tuple[str, str, str]) -> tuple[Form, ...]:
    return tuple(Form(*row) for row in rows)


_SLICES = _forms(
    ("the first {k} items", "up to {k} items from the start", "xs[:{k}]"),
    ("the last {k} items", "up to {k} items from the end", "xs[-{k}:]"),
    ("all but the first {k} items", "items without the first {k}", "xs[{k}:]"),
    ("all but the last {k} items", "items without the last {k}", "xs[:-{k}]"),
)

FAMILIES: Sequence[Family] = (
    Family(
        name="filter",
        argument="xs",
        inputs="around",
        forms=_compared("the items {c}", "only items {c}", "[x for x in xs if x {op}]"),
        slips=("[x for x in xs if x != {k}]", "xs"),
    ),
    Family(
        name="sum",
        argument="xs",
        inputs="around",
        forms=_compared("the sum of items {c}", "items {c} added up", "sum(x for x in xs if x {op})"),
        slips=("sum(xs)", "sum(xs) - {k}"),
    ),
    Family(
        name="count",
        argument="xs",
        inputs="around",
        forms=_compared("the number of items {c}", "how many items are {c}", "len([x for x in xs if x {op}])"),
        slips=("len(xs)", "xs.count({k})"),
    ),
    Family(
        name="map",
        argument="xs",
        inputs="around",
        forms=_forms(
            ("each item plus {k}", "items increased by {k}", "[x + {k} for x in xs]"),
            ("each item minus {k}", "items decreased by {k}", "[x - {k} for x in xs]"),
            ("each item times {k}", "items multiplied by {k}", "[x * {k} for x in xs]"),
        ),
        slips=("[{k} - x for x in xs]", "xs + [{k}]"),
    ),
    Family(
        name="multiples",
        argument="xs",
        inputs="multiples",
        numbers=(3, 49),
        forms=_forms(
            ("the multiples of {k}", "items divisible by {k}", "[x for x in xs if x % {k} == 0]"),
            ("items but multiples of {k}", "items not divisible by {k}", "[x for x in xs if x % {k} != 0]"),
            ("items modulo {k}", "remainders of items by {k}", "[x % {k} for x in xs]"),
        ),
        slips=("[x // {k} for x in xs]", "[x for x in xs if x % {k} == 1]"),
    ),
    Family(name="slice", argument="xs", inputs="long", numbers=(2, 24), forms=_SLICES, slips=("xs[{k}]", "xs[{k}:{k}]")),
    Family(
        name="divide",
        argument="n",
        inputs="near",
        numbers=(2, 99),
        forms=_forms(
            ("n modulo {k}", "the remainder of n by {k}", "n % {k}"),
            ("n by {k}, rounded down", "the whole part of n by {k}", "n // {k}"),
            ("n rounded down to a multiple of {k}", "the last multiple of {k} up to n", "n - n % {k}"),
        ),
        slips=("n / {k}", "{k} % (n + 1)"),
    ),
    Family(
        name="limit",
        argument="n",
        inputs="near",
        forms=_forms(
            ("n but at most {k}", "the smaller of n and {k}", "min(n, {k})"),
            ("n but at least {k}", "the larger of n and {k}", "max(n, {k})"),
            ("the distance from n to {k}", "how far n is from {k}", "abs(n - {k})"),
        ),
        slips=("n - {k}", "{k} - n"),
    ),
    Family(
        name="range",
        argument="n",
        inputs="near",
        forms=_forms(
            ("numbers from {k} up to n", "the integers {k} to n", "list(range({k}, n + 1))"),
            ("numbers from {k} but below n", "the integers {k} to n, without n", "list(range({k}, n))"),
            ("numbers below n in steps of {k}", "each multiple of {k} below n", "list(range(0, n, {k}))"),
        ),
        slips=("list(range(n))", "list(range(n, {k}))"),
    ),
    Family(
        name="join",
        argument="xs",
        inputs="words",
        forms=_forms(
            ("the words joined by '{a}'", "words with '{a}' between", "'{a}'.join(xs)"),
            ("the sorted words joined by '{a}'", "sorted words with '{a}' between", "'{a}'.join(sorted(xs))"),
            ("the reversed words joined by '{a}'", "reversed words with '{a}' between", "'{a}'.join(xs[::-1])"),
        ),
        slips=("''.join(xs)", "'{a}' + ''.join(xs)"),
    ),
    Family(
        name="affix",
        argument="s",
        inputs="text",
        forms=_forms(
            ("whether s starts with '{a}'", "if '{a}' opens s", "s.startswith('{a}')"),
            ("whether s ends with '{a}'", "if '{a}' closes s", "s.endswith('{a}')"),
            ("whether s contains '{a}'", "if '{a}' is in s", "'{a}' in s"),
        ),
        slips=("s == '{a}'", "'{a}' not in s"),
    ),
    Family(
        name="wrap",
        argument="s",
        inputs="text",
        forms=_forms(
            ("s with '{a}' before it", "'{a}' and then s", "'{a}' + s"),
            ("s with '{a}' after it", "s and then '{a}'", "s + '{a}'"),
            ("s with '{a}' on both sides", "s between '{a}' and '{a}'", "'{a}' + s + '{a}'"),
        ),
        slips=("s", "'{a}'.join(s)"),
    ),
    Family(
        name="remove",
        argument="s",
        inputs="text",
        forms=_forms(
            ("s without '{a}' at its start", "s less a leading '{a}'", "s.removeprefix('{a}')"),
            ("s without '{a}' at its end", "s less a closing '{a}'", "s.removesuffix('{a}')"),
            ("s without any '{a}'", "s less every '{a}'", "s.replace('{a}', '')"),
        ),
        slips=("s.strip('{a}')", "s.replace('{a}', '', 1)"),
    ),
    Family(
        name="find",
        argument="s",
        inputs="text",
        forms=_forms(
            ("how often '{a}' occurs in s", "the count of '{a}' in s", "s.count('{a}')"),
            ("the index of the first '{a}' in s", "where '{a}' first occurs in s", "s.find('{a}')"),
            ("the index of the last '{a}' in s", "where '{a}' last occurs in s", "s.rfind('{a}')"),
        ),
        slips=("len(s)", "s.count('{a}') + 1"),
    ),
    Family(
        name="pad",
        argument="s",
        inputs="short",
        numbers=(10, 49),
        forms=_forms(
            ("s padded on the left to {k}", "s to the right in {k} columns", "s.rjust({k})"),
            ("s padded on the right to {k}", "s to the left in {k} columns", "s.ljust({k})"),
            ("s centred in {k}", "s in the middle of {k} columns", "s.center({k})"),
        ),
        slips=("s + ' ' * {k}", "' ' * {k} + s", "s[:{k}]"),
    ),
    Family(
        name="case",
        argument="s",
        inputs="sentence",
        numbers=(2, 24),
        forms=_forms(
            ("s with {k} letters upper case at its start", "s, its first {k} letters in capitals", "s[:{k}].upper() + s[{k}:]"),
            ("s in upper case from index {k} on", "s, in capitals from {k} on", "s[:{k}] + s[{k}:].upper()"),
            ("the first {k} letters in upper case", "only {k} letters, in capitals", "s[:{k}].upper()"),
        ),
        slips=("s.upper()", "s[{k}:].upper()", "s[:{k}]"),
    ),
)
