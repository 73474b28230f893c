"""How good a model is: perplexity with all it depends on, losses by frequency, and n-grams to compare with.

Names are loaded when first used, so that importing this package costs nothing.
"""

from typing import TYPE_CHECKING

from anymax import lazy

if TYPE_CHECKING:
    from anymax.evaluation.frequency import Bin as Bin
    from anymax.evaluation.frequency import FrequencyTable as FrequencyTable
    from anymax.evaluation.frequency import LossByFrequency as LossByFrequency
    from anymax.evaluation.measured_perplexity import Perplexity as Perplexity
    from anymax.evaluation.measured_perplexity import perplexity as perplexity
    from anymax.evaluation.ngrams import InterpolatedBigram as InterpolatedBigram
    from anymax.evaluation.ngrams import Unigram as Unigram
    from anymax.evaluation.ngrams import interpolated_bigram as interpolated_bigram
    from anymax.evaluation.ngrams import unigram as unigram
    from anymax.evaluation.scoring import Scored as Scored
    from anymax.evaluation.scoring import token_losses as token_losses

_HOME_OF = {
    "Bin": "frequency",
    "FrequencyTable": "frequency",
    "InterpolatedBigram": "ngrams",
    "LossByFrequency": "frequency",
    "Perplexity": "measured_perplexity",
    "Scored": "scoring",
    "Unigram": "ngrams",
    "interpolated_bigram": "ngrams",
    "perplexity": "measured_perplexity",
    "token_losses": "scoring",
    "unigram": "ngrams",
}

__all__ = [*_HOME_OF]
__getattr__, __dir__ = lazy.attach(__name__, {name: f"{__name__}.{home}" for name, home in _HOME_OF.items()})
