"""What comes after a step."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Due:
    """What comes after a step; all hosts have the same, for it is a function of the step."""

    saving: bool
    keeping: bool  # in the local tier
    evaluating: bool
    checking: bool  # copies of the state
    comparing: bool  # hosts

    @property
    def storing(self) -> bool:
        """Whether the state is put anywhere, so that it has to be finite."""
        return self.saving or self.keeping

    @property
    def ended_step(self) -> bool:
        """Whether the step has to have ended before the next one is begun."""
        return self.storing or self.evaluating or self.comparing
