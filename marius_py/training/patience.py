"""When a run ends before its last epoch (floor 4): its state and patience in, whether it does out."""

from __future__ import annotations

import logging

from marius_py.nn.schedules import since_best
from marius_py.run_state import RunState

log = logging.getLogger(__name__)


def is_exhausted(state: RunState, patience: int | None) -> bool:
    """Whether an epoch is over and validation has not improved for as long as patience lasts; it is logged.

    Args:
        state: of the run.
        patience: validations in a row without a new best MRR; None: any number.
    """
    if patience is None or not state.is_between_epochs:
        return False
    validations = state.validations()
    waited = since_best([mrr for _, mrr in validations])
    if waited < patience:
        return False
    best = validations[-1 - waited]
    log.info(
        "stopping after epoch %d: %svalidation MRR was best after epoch %d (%.4f) and has not been "
        "higher in %d validations since (training.patience)",
        state.position.epoch,
        "sampled " if any((line.get("valid") or {}).get("sampled") for line in state.history) else "",
        *best,
        waited,
    )
    return True
