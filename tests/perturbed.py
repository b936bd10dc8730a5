"""Tests as if on another processor, with every number noted that an assertion compares.

A plugin of pytest, for ``python -m tests.margins``: products of matrices are off by a
unit in the last place or not at all, always alike for the same result, so that what
must be equal stays equal. TEST_PERTURBATION is which of the perturbations; runs without
a seed have other keys in each. TEST_GAPS is the file that gets the gaps: how far each
compared number is on the right side of its bound.
"""

import ast
import json
import os
from collections import Counter
from collections.abc import Callable
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _pytest.approx import ApproxScalar
from _pytest.assertion import rewrite
from torch import Tensor

PERTURBATION = int(os.environ.get("TEST_PERTURBATION", "0"))
NOTE = "note_gap"
ORDER: dict[type[ast.cmpop], tuple[int, Callable[[Any, Any], Any]]] = {
    ast.Lt: (1, lambda a, b: a < b),
    ast.LtE: (1, lambda a, b: a <= b),
    ast.Gt: (-1, lambda a, b: a > b),
    ast.GtE: (-1, lambda a, b: a >= b),
}
INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}

gaps: dict[str, float] = {}
seen: Counter[str] = Counter()
running = [""]


def moved(result: Tensor) -> Tensor:
    """Return numbers up to a unit in the last place off, by a hash of their own bits."""
    if not PERTURBATION or result.dtype not in INTEGERS:
        return result
    bits = result.contiguous().view(INTEGERS[result.dtype])
    mixed = (bits ^ (PERTURBATION * 40503)) * 1103515245
    step = ((mixed >> 11) & 3) % 3 - 1
    is_plain = result.isfinite() & (result != 0)
    return torch.where(is_plain, bits + step.to(bits.dtype), bits).view(result.dtype)


def perturb_products() -> torch.library.Library:
    """Replace the products of matrices on the CPU, but for the one that computes them."""
    library = torch.library.Library("aten", "IMPL")

    def bmm(a: Tensor, b: Tensor) -> Tensor:
        zeros = a.new_zeros(len(a), a.shape[1], b.shape[2])
        return moved(torch.baddbmm(zeros, a, b, beta=0))

    def addmm(
        start: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1
    ) -> Tensor:
        product = bmm(a[None], b[None])[0]
        return product if (beta, alpha) == (0, 1) else beta * start + alpha * product

    library.impl("bmm", bmm, "CPU")
    library.impl("mm", lambda a, b: bmm(a[None], b[None])[0], "CPU")
    library.impl("addmm", addmm, "CPU")
    return library


def note(line: int, kind: str, left: Any, right: Any) -> Any:
    """Compare as the assertion does, and keep how far it is from the other answer."""
    sign, compare = next(value for one, value in ORDER.items() if one.__name__ == kind)
    answer = compare(left, right)
    try:
        with np.errstate(invalid="ignore"):  # both may be infinite
            gap = sign * (np.asarray(right, float) - np.asarray(left, float))
    except (TypeError, ValueError, RuntimeError):
        return answer
    if all(isinstance(one, int | np.integer) for one in (left, right)) is False:
        _keep(line, gap)
    return answer


def note_equal(line: int, left: Any, right: Any) -> Any:
    """Compare with what is about right, and keep how much of the tolerance is left."""
    about, value = (left, right) if isinstance(left, ApproxScalar) else (right, left)
    if isinstance(about, ApproxScalar) and isinstance(value, Real | np.number | Tensor):
        _keep(line, about.tolerance - abs(np.asarray(value, float) - about.expected))
    return left == right


def note_close(close: Callable[..., Any]) -> Callable[..., Any]:
    """Return a check of closeness that keeps how much of its tolerance is left."""

    def check(actual: Any, expected: Any, *others: Any, **options: Any) -> Any:
        answer = close(actual, expected, *others, **options)
        try:
            a, b = (np.asarray(one, dtype=float) for one in (actual, expected))
            rtol, atol = options.get("rtol", 1e-5), options.get("atol", 1e-8)
            _keep(close.__name__, rtol * abs(b) + atol - abs(a - b))
        except (TypeError, ValueError, RuntimeError):
            pass
        return answer

    return check


def _keep(line: object, gap: Any) -> None:
    gap = np.asarray(gap, dtype=float)
    if running[0] and gap.size and np.isfinite(gap).all():
        place = f"{running[0]}:{line}"
        seen[place] += 1
        gaps[f"{place}#{seen[place]}"] = float(gap.min())


class Comparisons(ast.NodeTransformer):
    """Replaces the comparisons of assertions by calls that note them."""

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if len(node.ops) != 1:
            return self._each_of(node)
        kind, sides = type(node.ops[0]), [node.left, node.comparators[0]]
        line = ast.Constant(node.lineno)
        if kind in ORDER:
            return self._call(NOTE, [line, ast.Constant(kind.__name__), *sides])
        return self._call(f"{NOTE}_equal", [line, *sides]) if kind is ast.Eq else node

    def _each_of(self, node: ast.Compare) -> ast.expr:
        """Split ``a < b < c``, where computing b twice is harmless."""
        if not all(type(one) in ORDER for one in node.ops):
            return node
        sides = [node.left, *node.comparators]
        pairs: list[ast.expr] = [
            self.visit_Compare(
                ast.copy_location(ast.Compare(sides[n], [one], [sides[n + 1]]), node)
            )
            for n, one in enumerate(node.ops)
        ]
        return ast.BoolOp(ast.And(), pairs)

    @staticmethod
    def _call(name: str, arguments: list[ast.expr]) -> ast.Call:
        return ast.Call(ast.Name(f"__{name}__", ast.Load()), arguments, [])


def _rewrite(original: Callable[..., None]) -> Callable[..., None]:
    def rewritten(module: ast.Module, *others: Any, **options: Any) -> None:
        for node in ast.walk(module):
            if isinstance(node, ast.Assert):
                node.test = Comparisons().visit(node.test)
        original(ast.fix_missing_locations(module), *others, **options)

    return rewritten


def pytest_configure(config: pytest.Config) -> None:
    """Note what is compared, and perturb what is computed, in this process."""
    import builtins

    from privaudit.core import portable_bits  # its types are checked from here on

    setattr(builtins, f"__{NOTE}__", note)
    setattr(builtins, f"__{NOTE}_equal__", note_equal)
    rewrite.rewrite_asserts = _rewrite(rewrite.rewrite_asserts)
    rewrite._read_pyc = lambda *asked: None  # those that lie there note nothing
    rewrite._write_pyc = lambda *asked: False
    np.testing.assert_allclose = note_close(np.testing.assert_allclose)
    torch.allclose = note_close(torch.allclose)
    if PERTURBATION:  # else each command warns that its bits are not the portable ones
        portable_bits.differing_operations = lambda: ()  # type: ignore[assignment]
    config.stash[LIBRARY] = perturb_products()


LIBRARY = pytest.StashKey[torch.library.Library]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    drawn = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    running[0] = "" if drawn else item.nodeid  # whose numbers are others each time
    seen.clear()


def pytest_sessionfinish() -> None:
    """Write the gaps of this process."""
    path = os.environ.get("TEST_GAPS")
    if path and gaps:
        Path(f"{path}.{os.getpid()}").write_text(json.dumps(gaps))
