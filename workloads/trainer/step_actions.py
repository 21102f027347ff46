"""Actions due after a step."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Due:
    """Actions due after a step. A function of the step alone, so all hosts agree."""

    saving: bool
    keeping: bool  # to the local tier
    evaluating: bool
    checking: bool  # the state's replicas
    comparing: bool  # hosts, to find stragglers

    @property
    def storing(self) -> bool:
        """True if the state is saved in any tier, so that it must be finite."""
        return self.saving or self.keeping

    @property
    def ended_step(self) -> bool:
        """True if the step must finish before the next one is dispatched."""
        return self.storing or self.evaluating or self.comparing
