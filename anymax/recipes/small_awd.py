"""What the AWD-LSTMs for two cores share: the sizes, and how they are trained.

Narrow vectors before the output, so that the rank of its scores is tight and output layers have something to loosen.
Short batches, little dropout and Adam are what learns most in few epochs, and one rate is the best of those tried for
every output.
"""

from anymax.data.text.config import Text
from anymax.models import AWDLSTMConfig, LanguageModelConfig, Tie
from anymax.training.config import RunConfig
from anymax.training.optim.optimizers import AdamConfig, AveragedSGDConfig, SGDConfig
from anymax.training.optim.schedules import Constant, Cosine
from anymax.training.tasks.language_modeling.config import Contiguous, Evaluation, LanguageModelingConfig, RandomLengths
from anymax.transforms import PLIFConfig, SigConfig
from anymax.vocabulary import FixedInputConfig, FullOutputConfig, MixtureOutputConfig, OutputConfig, SparseOutputConfig

DIM = 64
RATE = 30.0
DECAY = 1.2e-6
BODY = AWDLSTMConfig(
    DIM,
    200,
    2,
    DIM,
    word_dropout=0.02,
    input_dropout=0.05,
    layer_dropout=0.05,
    output_dropout=0.05,
    weight_dropout=0.05,
)
LENGTHS = RandomLengths()
WARM = Cosine(0.05)
QUICK = AdamConfig(1e-2, weight_decay=DECAY)
PLAIN = SGDConfig(RATE, weight_decay=DECAY)
AVERAGED = AveragedSGDConfig(RATE, weight_decay=DECAY)

LINEAR = FullOutputConfig(bias=True)
# One piece is a line: the scores times what is learned for all of them.
SCALED = FullOutputConfig(bias=True, transform=PLIFConfig(1))
SIGSOFTMAX = FullOutputConfig(bias=True, transform=SigConfig())
PLIF = PLIFConfig(100_000)
PIECEWISE = FullOutputConfig(bias=True, transform=PLIF)
SPARSE = SparseOutputConfig(1.5, bias=True)


def mixture(num_experts: int, transform: PLIFConfig | None = None) -> MixtureOutputConfig:
    """Experts as wide as the table of words."""
    return MixtureOutputConfig(num_experts, dim=DIM, latent_dropout=0.05, variational=True, transform=transform)


def small_awd(
    corpus: str,
    output: OutputConfig,
    *,
    epochs: float,
    body: AWDLSTMConfig = BODY,
    lengths: RandomLengths | None = LENGTHS,
    optimizer: AveragedSGDConfig | SGDConfig | AdamConfig = QUICK,
    schedule: Constant | Cosine = WARM,
) -> RunConfig:
    """A tied AWD-LSTM of two layers and how it is trained on a named corpus.

    Args:
        lengths: how long the rows of batches are; None for all of one length.
    """
    return RunConfig(
        LanguageModelingConfig(
            Text(corpus),
            LanguageModelConfig(FixedInputConfig(), output, body, Tie()),
            Contiguous(10, 20, lengths),
            evaluation=Evaluation(rows=10),
        ),
        optimizer,
        schedule,
        epochs=epochs,
        clip=0.25,
        evaluate_every="epoch",
    )
