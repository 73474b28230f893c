"""How good a model is: perplexity with all it depends on, losses by frequency, what it chooses, the rank of its
log-probabilities, models that follow the text, and n-grams to compare with.

Names are loaded when first used, so that importing this package costs nothing.
"""

from typing import TYPE_CHECKING

from anymax import lazy

if TYPE_CHECKING:
    from anymax.evaluation.adaptation_config import CachePointer as CachePointer
    from anymax.evaluation.adaptation_config import DynamicEvaluation as DynamicEvaluation
    from anymax.evaluation.cache_pointer import CachedModel as CachedModel
    from anymax.evaluation.choices import ChoiceCounter as ChoiceCounter
    from anymax.evaluation.choices import Choices as Choices
    from anymax.evaluation.choices import measure_choices as measure_choices
    from anymax.evaluation.dynamic import adapting as adapting
    from anymax.evaluation.dynamic import gradient_sizes as gradient_sizes
    from anymax.evaluation.frequency import Bin as Bin
    from anymax.evaluation.frequency import FrequencyTable as FrequencyTable
    from anymax.evaluation.frequency import LossByFrequency as LossByFrequency
    from anymax.evaluation.importance import log_likelihood as log_likelihood
    from anymax.evaluation.measured_perplexity import Perplexity as Perplexity
    from anymax.evaluation.measured_perplexity import perplexity as perplexity
    from anymax.evaluation.ngrams import InterpolatedBigram as InterpolatedBigram
    from anymax.evaluation.ngrams import Unigram as Unigram
    from anymax.evaluation.ngrams import interpolated_bigram as interpolated_bigram
    from anymax.evaluation.ngrams import unigram as unigram
    from anymax.evaluation.predicted import Predicted as Predicted
    from anymax.evaluation.predicted import Read as Read
    from anymax.evaluation.predicted import hidden_states as hidden_states
    from anymax.evaluation.predicted import predictions as predictions
    from anymax.evaluation.rank import MatrixRank as MatrixRank
    from anymax.evaluation.rank import effective_rank as effective_rank
    from anymax.evaluation.rank import log_prob_rank as log_prob_rank
    from anymax.evaluation.rank import matrix_rank as matrix_rank
    from anymax.evaluation.scoring import Scored as Scored
    from anymax.evaluation.scoring import token_losses as token_losses
    from anymax.evaluation.spectrum import singular_values as singular_values

_HOME_OF = {
    "Bin": "frequency",
    "CachePointer": "adaptation_config",
    "CachedModel": "cache_pointer",
    "ChoiceCounter": "choices",
    "Choices": "choices",
    "DynamicEvaluation": "adaptation_config",
    "FrequencyTable": "frequency",
    "InterpolatedBigram": "ngrams",
    "LossByFrequency": "frequency",
    "MatrixRank": "rank",
    "Perplexity": "measured_perplexity",
    "Predicted": "predicted",
    "Read": "predicted",
    "Scored": "scoring",
    "Unigram": "ngrams",
    "adapting": "dynamic",
    "effective_rank": "rank",
    "gradient_sizes": "dynamic",
    "hidden_states": "predicted",
    "interpolated_bigram": "ngrams",
    "log_likelihood": "importance",
    "log_prob_rank": "rank",
    "matrix_rank": "rank",
    "measure_choices": "choices",
    "perplexity": "measured_perplexity",
    "predictions": "predicted",
    "singular_values": "spectrum",
    "token_losses": "scoring",
    "unigram": "ngrams",
}

__all__ = [*_HOME_OF]
__getattr__, __dir__ = lazy.attach(__name__, {name: f"{__name__}.{home}" for name, home in _HOME_OF.items()})
