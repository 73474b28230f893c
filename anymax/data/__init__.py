"""Text for language models: corpora, lexicons, encoded files and batches.

Names are loaded when first used, so that corpora and lexicons can be read without importing torch.
"""

from typing import TYPE_CHECKING

from anymax import lazy

if TYPE_CHECKING:
    from anymax.data.batches import Batch as Batch
    from anymax.data.batches import Batches as Batches
    from anymax.data.batches import BlockBatches as BlockBatches
    from anymax.data.batches import ContiguousBatches as ContiguousBatches
    from anymax.data.corpus import Corpus as Corpus
    from anymax.data.corpus import corpus_from_file as corpus_from_file
    from anymax.data.corpus import corpus_in_folder as corpus_in_folder
    from anymax.data.corpus import corpus_of_files as corpus_of_files
    from anymax.data.corpus import corpus_of_lines as corpus_of_lines
    from anymax.data.encoded import Encoded as Encoded
    from anymax.data.encoded import default_cache as default_cache
    from anymax.data.encoded import encode as encode
    from anymax.data.lexicon import Lexicon as Lexicon
    from anymax.data.lines import open_lines as open_lines
    from anymax.data.named import open_corpus as open_corpus
    from anymax.data.named import ptb as ptb
    from anymax.data.named import pydoc as pydoc
    from anymax.data.named import sotu as sotu
    from anymax.data.named import wikitext_2 as wikitext_2
    from anymax.data.named import wikitext_103 as wikitext_103
    from anymax.data.sentences import SentenceBatches as SentenceBatches
    from anymax.data.words import split_line as split_line

_HOME_OF = {
    "Batch": "batches",
    "Batches": "batches",
    "BlockBatches": "batches",
    "ContiguousBatches": "batches",
    "Corpus": "corpus",
    "Encoded": "encoded",
    "Lexicon": "lexicon",
    "SentenceBatches": "sentences",
    "corpus_from_file": "corpus",
    "corpus_in_folder": "corpus",
    "corpus_of_files": "corpus",
    "corpus_of_lines": "corpus",
    "default_cache": "encoded",
    "encode": "encoded",
    "open_corpus": "named",
    "open_lines": "lines",
    "ptb": "named",
    "pydoc": "named",
    "sotu": "named",
    "split_line": "words",
    "wikitext_2": "named",
    "wikitext_103": "named",
}

__all__ = [*_HOME_OF]
__getattr__, __dir__ = lazy.attach(__name__, {name: f"{__name__}.{home}" for name, home in _HOME_OF.items()})
