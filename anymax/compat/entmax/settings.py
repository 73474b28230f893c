"""The settings of entmax 1.3's algorithms. Ours solves exactly without them, so they are checked and nothing more."""


def check_k(k: int | None) -> None:
    """`k`: how many of the largest scores are sorted first."""
    if k is not None and k < 1:
        raise ValueError(f"k must be None or at least 1, got {k}; it does not change the result, so it can be left out")


def check_n_iter(n_iter: int | None) -> None:
    """`n_iter`: how often bisection halves its bracket."""
    if n_iter is not None and n_iter < 1:
        raise ValueError(
            f"n_iter must be at least 1, got {n_iter}; it does not change the result, so it can be left out"
        )


def check_ensure_sum_one(ensure_sum_one: bool) -> None:
    """`ensure_sum_one`: whether the result is divided by its sum."""
    if not isinstance(ensure_sum_one, bool):
        raise ValueError(
            f"ensure_sum_one must be True or False, got {ensure_sum_one!r}; the result sums to one either way"
        )
