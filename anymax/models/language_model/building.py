"""From the config of a language model to the model, for the words of a lexicon."""

from torch import nn

from anymax.models.language_model.config import LanguageModelConfig
from anymax.models.language_model.model import LanguageModel
from anymax.vocabulary import OutputLayer, tie_
from anymax.vocabulary.config import OutputConfig, Words


def build_language_model(config: LanguageModelConfig, lexicon: Words) -> LanguageModel:
    """The model of a config, its parameters drawn at random, for the words of a lexicon.

    Args:
        config: input, output, body, tying and mapping.
        lexicon: the words, sorted by falling count; a `Lexicon`, or what has `words`, `eos` and `unk` as one.

    Example:
        >>> from anymax.data import Lexicon
        >>> from anymax.models import LanguageModelConfig, LSTMConfig, build_language_model
        >>> from anymax.vocabulary import FixedInputConfig, FullOutputConfig
        >>> config = LanguageModelConfig(FixedInputConfig(), FullOutputConfig(), LSTMConfig(8, 16))
        >>> model = build_language_model(config, Lexicon.from_counts({"the": 5, "cat": 2}))
        >>> model.output.vocabulary_size
        4
    """
    input = config.input.build(lexicon, config.body.input_dim)
    output = config.output.build(len(lexicon), config.body.output_dim)
    if config.tie is not None:
        tie_(input, output, tables=config.tie.tables, projections=config.tie.projections, head=config.tie.head)
    return config.body.build(input, output, config.mapping)


def output_rates(output: OutputConfig, layer: OutputLayer) -> dict[nn.Parameter, float]:
    """Parameters of an output layer with another learning rate than the optimizer's, as a share of it.

    Args:
        output: the config that the layer was built from.
    """
    if output.transform is None or output.transform.rate == 1:
        return {}
    return dict.fromkeys(layer.get_submodule("transform").parameters(), output.transform.rate)
