"""Text for language models: corpora, lexicons, encoded files and batches.

Names are loaded when first used, so that corpora and lexicons can be read without importing torch.
"""

from typing import TYPE_CHECKING

from anymax import lazy

if TYPE_CHECKING:
    from anymax.data.batches import Batch as Batch
    from anymax.data.batches import Batches as Batches
    from anymax.data.batches import BlockBatches as BlockBatches
    from anymax.data.cache import default_cache as default_cache
    from anymax.data.contiguous import ContiguousBatches as ContiguousBatches
    from anymax.data.corpus import Corpus as Corpus
    from anymax.data.corpus import corpus_from_file as corpus_from_file
    from anymax.data.corpus import corpus_in_folder as corpus_in_folder
    from anymax.data.corpus import corpus_of_files as corpus_of_files
    from anymax.data.corpus import corpus_of_lines as corpus_of_lines
    from anymax.data.counting import count_words as count_words
    from anymax.data.encoded import Encoded as Encoded
    from anymax.data.encoded import encode as encode
    from anymax.data.lexicon import Lexicon as Lexicon
    from anymax.data.lines import open_lines as open_lines
    from anymax.data.named import lm1b as lm1b
    from anymax.data.named import open_corpus as open_corpus
    from anymax.data.named import ptb as ptb
    from anymax.data.named import pydoc as pydoc
    from anymax.data.named import sotu as sotu
    from anymax.data.named import wikitext_2 as wikitext_2
    from anymax.data.named import wikitext_103 as wikitext_103
    from anymax.data.prepared import Prepared as Prepared
    from anymax.data.prepared import make_units as make_units
    from anymax.data.prepared import prepare as prepare
    from anymax.data.prepared import reopen as reopen
    from anymax.data.random_lengths import RandomLengths as RandomLengths
    from anymax.data.sentences import SentenceBatches as SentenceBatches
    from anymax.data.subwords import Subwords as Subwords
    from anymax.data.text import BPE as BPE
    from anymax.data.text import Text as Text
    from anymax.data.text import Words as Words
    from anymax.data.units import Units as Units
    from anymax.data.words import split_line as split_line

_HOME_OF = {
    "BPE": "text",
    "Batch": "batches",
    "Batches": "batches",
    "BlockBatches": "batches",
    "ContiguousBatches": "contiguous",
    "Corpus": "corpus",
    "Encoded": "encoded",
    "Lexicon": "lexicon",
    "Prepared": "prepared",
    "RandomLengths": "random_lengths",
    "SentenceBatches": "sentences",
    "Subwords": "subwords",
    "Text": "text",
    "Units": "units",
    "Words": "text",
    "corpus_from_file": "corpus",
    "corpus_in_folder": "corpus",
    "corpus_of_files": "corpus",
    "corpus_of_lines": "corpus",
    "count_words": "counting",
    "default_cache": "cache",
    "encode": "encoded",
    "lm1b": "named",
    "make_units": "prepared",
    "open_corpus": "named",
    "open_lines": "lines",
    "prepare": "prepared",
    "ptb": "named",
    "pydoc": "named",
    "reopen": "prepared",
    "sotu": "named",
    "split_line": "words",
    "wikitext_103": "named",
    "wikitext_2": "named",
}

__all__ = [*_HOME_OF]
__getattr__, __dir__ = lazy.attach(__name__, {name: f"{__name__}.{home}" for name, home in _HOME_OF.items()})
