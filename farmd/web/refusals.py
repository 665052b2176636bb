"""Counts and logs credentials that were refused, so that guessing is seen and cannot fill the log."""

from __future__ import annotations

from typing import Literal

import structlog

from store.ports import Clock, Recorder

log = structlog.get_logger()

APART_SECONDS = 1.0
METRIC = "farmd_sign_ins_refused_total"


class Refusals:
    """All are counted; one in a second is logged, with the number of those before it that were not."""

    def __init__(self, recorder: Recorder, clock: Clock) -> None:
        self._recorder = recorder
        self._clock = clock
        self._logged = float("-inf")
        self._unsaid = 0

    def note(self, credential: Literal["token", "key"], peer: str | None, reason: str) -> None:
        """Note one refusal."""
        self._recorder.count(METRIC, credential=credential)
        if self._clock.mono() < self._logged + APART_SECONDS:
            self._unsaid += 1
            return
        log.warning("web.sign_in_refused", how=credential, peer=peer, reason=reason, unsaid=self._unsaid)
        self._logged, self._unsaid = self._clock.mono(), 0
