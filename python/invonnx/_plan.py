# SPDX-License-Identifier: Apache-2.0
"""Plans of a training step: numbers and pictures."""
from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Union

from . import _values
from ._native import ffi, lib
from ._session import Session, shown_bytes

if TYPE_CHECKING:
    from ._model import Model


class Plan:
    """What a training step needs; made by `Model.plan`. A notebook shows it as a picture of memory over the step.

    Attributes
    ----------
    report : dict
        All that `invonnx plan --json` says (`inv_session_report`).
    peak_bytes, store_peak_bytes : int
        Bytes of session and step at most: as planned, and with every value stored.
    overhead : float
        Cost over that of storing everything, as a share of it.
    """

    def __init__(self, model: Model, batch: Optional[int], session: Session,
                 again: Callable[[Mapping[str, Any]], Session]) -> None:
        self._session, self._again = session, again
        self._stored: Optional[Dict[str, Any]] = None
        self.report: Dict[str, Any] = session.report()
        self.peak_bytes = int(self.report["planned_peak_bytes"])
        self.store_peak_bytes = int(self.report["store_peak_bytes"])
        self.overhead = float(self.report["plan"]["overhead"])
        self._heading = "a step" if batch is None else f"a step of {batch} rows"

    def __repr__(self) -> str:
        seconds = self.report["predicted_seconds"]
        return (f"<invonnx.Plan of {self._heading}: memory {self.report['memory']}, peak {shown_bytes(self.peak_bytes)} "
                f"({self.peak_bytes} bytes), {shown_bytes(self.store_peak_bytes)} with all values stored; "
                f"{100 * self.overhead:+.1f} % {self.report['cost']}" + (f", {1e3 * seconds:.3g} ms a step>" if seconds else ">"))

    @property
    def text(self) -> str:
        """The plan by names, as JSON, for `plan_text` of a trainer of the same batch and mode."""
        return self._session.plan()

    def explain(self) -> Dict[str, Any]:
        """Why it is so (docs/explain.md).

        Raises
        ------
        OutOfMemory
            There is no memory for the report.
        """
        return self._session.explain()

    def try_budget(self, budget: Union[int, str] = 0) -> Dict[str, float]:
        """What the step would cost within another budget; 0: the smallest peak there is, whatever it costs.

        Returns
        -------
        dict
            ``peak_bytes``, ``overhead`` and ``bound``, below which no plan within the budget costs.

        Raises
        ------
        OutOfMemory
            The budget cannot be met.
        TypeError, ValueError
            It is no number of bytes.
        """
        trial = ffi.new("inv_trial *")
        trial.size = ffi.sizeof("inv_trial")
        self._session.context.call(lib.inv_session_try_budget, self._session.pointer, _values.nbytes("budget", budget),
                                   trial)
        return {"peak_bytes": trial.peak, "overhead": trial.overhead, "bound": trial.bound}

    def curve(self, points: int = 9) -> List[Dict[str, float]]:
        """Time against memory, from the smallest peak to storing everything: a search for each point. A point that
        takes no less of either than another is left out.

        Raises
        ------
        OutOfMemory
            There is no memory for a search.
        TypeError, ValueError
            `points` is no number from 1 on.
        """
        points = _values.whole("points", points, 1)
        store = self.store_peak_bytes
        found = [self.try_budget()]
        smallest = int(found[0]["peak_bytes"])
        if smallest < store:
            budgets = [int(smallest + (store - smallest) * i / points) for i in range(1, points)]
            found += [self.try_budget(budget) for budget in [*budgets, max(self.peak_bytes, smallest)]]
        best: List[Dict[str, float]] = []
        for point in sorted(found, key=lambda p: (p["peak_bytes"], p["overhead"])):
            if point["peak_bytes"] < store and (not best or point["overhead"] < best[-1]["overhead"]):
                best.append(point)
        return [*best, {"peak_bytes": store, "overhead": 0.0, "bound": 0.0}]

    def svg(self, curve: bool = False) -> str:
        """The picture: memory over the step, all values stored above, as planned below.

        Parameters
        ----------
        curve
            Also time against memory, which takes ten searches.

        Raises
        ------
        OutOfMemory, MemoryError
            There is no memory for the picture.
        """
        return self._draw(curve, page=False)

    def html(self, curve: bool = True) -> str:
        """The page that ``invonnx plan --html`` writes.

        Raises
        ------
        OutOfMemory, MemoryError
            There is no memory for the picture.
        """
        return self._draw(curve, page=True)

    def _repr_html_(self) -> str:
        return self.svg()

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the picture, by the suffix an SVG file (.svg) or a page.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        drawn = self.svg(True) if os.fspath(path).endswith(".svg") else self.html()
        with open(path, "w", encoding="utf-8") as f:
            f.write(drawn)

    def _draw(self, curve: bool, page: bool) -> str:
        if self._stored is None:
            self._stored = self._again({"memory": "store", "modes": None, "budget": None, "plan_text": None}).report()
        texts: List[Any] = [json.dumps(each).encode() for each in (self._stored, self.report)]
        texts.append(json.dumps(self.curve()).encode() if curve else ffi.NULL)
        texts.append(json.dumps(self.explain()).encode() if page else ffi.NULL)
        drawn = lib.invonnx_draw_plan(self._heading.encode(), *texts, page)
        if not drawn:
            raise MemoryError
        try:
            return str(ffi.string(drawn).decode())
        finally:
            lib.free(drawn)
