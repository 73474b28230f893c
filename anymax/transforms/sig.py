from torch import Tensor
from torch.nn import functional


def sig(scores: Tensor) -> Tensor:
    return scores + functional.logsigmoid(scores)
