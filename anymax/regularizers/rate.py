"""How often something is dropped, as every dropout here has it."""


def check_rate(rate: float) -> None:
    """A rate is a chance."""
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must lie between 0 and 1, got {rate}")
