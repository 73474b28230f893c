"""Whole models, which take their input layer, output layer and mapping as arguments, and text drawn from them.

Names are loaded when first used, so that a config can be made without importing torch.
"""

from typing import TYPE_CHECKING

from anymax import lazy

if TYPE_CHECKING:
    from anymax.models.awd_lstm import AWDLSTM as AWDLSTM
    from anymax.models.awd_lstm_config import AWDLSTMConfig as AWDLSTMConfig
    from anymax.models.bit_vector_vae import BitVectorVAE as BitVectorVAE
    from anymax.models.building import build_language_model as build_language_model
    from anymax.models.generation import generate as generate
    from anymax.models.language_model import LanguageModel as LanguageModel
    from anymax.models.language_model import fsdp_groups as fsdp_groups
    from anymax.models.language_model import learned_alphas as learned_alphas
    from anymax.models.language_model_config import EntmaxAttention as EntmaxAttention
    from anymax.models.language_model_config import LanguageModelConfig as LanguageModelConfig
    from anymax.models.language_model_config import LearnedEntmaxAttention as LearnedEntmaxAttention
    from anymax.models.language_model_config import SoftmaxAttention as SoftmaxAttention
    from anymax.models.language_model_config import Tie as Tie
    from anymax.models.layer_config import Adaptive as Adaptive
    from anymax.models.layer_config import AdaptiveSoftmax as AdaptiveSoftmax
    from anymax.models.layer_config import Characters as Characters
    from anymax.models.layer_config import Fixed as Fixed
    from anymax.models.layer_config import Full as Full
    from anymax.models.layer_config import Mixture as Mixture
    from anymax.models.layer_config import Sparse as Sparse
    from anymax.models.lstm_config import LSTMConfig as LSTMConfig
    from anymax.models.lstm_lm import LSTMLM as LSTMLM
    from anymax.models.recurrent_state import RecurrentState as RecurrentState
    from anymax.models.semi_supervised_vae import SemiSupervisedVAE as SemiSupervisedVAE
    from anymax.models.signalling_game import SignallingGame as SignallingGame
    from anymax.models.transform_config import MonotonicNetworkConfig as MonotonicNetworkConfig
    from anymax.models.transform_config import PLIFConfig as PLIFConfig
    from anymax.models.transform_config import SigConfig as SigConfig
    from anymax.models.transformer.block import TransformerBlock as TransformerBlock
    from anymax.models.transformer.config import TransformerConfig as TransformerConfig
    from anymax.models.transformer_lm import TransformerLM as TransformerLM

_HOME_OF = {
    "AWDLSTM": "awd_lstm",
    "AWDLSTMConfig": "awd_lstm_config",
    "LSTMLM": "lstm_lm",
    "Adaptive": "layer_config",
    "AdaptiveSoftmax": "layer_config",
    "BitVectorVAE": "bit_vector_vae",
    "Characters": "layer_config",
    "EntmaxAttention": "language_model_config",
    "Fixed": "layer_config",
    "Full": "layer_config",
    "LSTMConfig": "lstm_config",
    "LanguageModel": "language_model",
    "LanguageModelConfig": "language_model_config",
    "LearnedEntmaxAttention": "language_model_config",
    "Mixture": "layer_config",
    "MonotonicNetworkConfig": "transform_config",
    "PLIFConfig": "transform_config",
    "RecurrentState": "recurrent_state",
    "SemiSupervisedVAE": "semi_supervised_vae",
    "SigConfig": "transform_config",
    "SignallingGame": "signalling_game",
    "SoftmaxAttention": "language_model_config",
    "Sparse": "layer_config",
    "Tie": "language_model_config",
    "TransformerBlock": "transformer.block",
    "TransformerConfig": "transformer.config",
    "TransformerLM": "transformer_lm",
    "build_language_model": "building",
    "fsdp_groups": "language_model",
    "generate": "generation",
    "learned_alphas": "language_model",
}

__all__ = [*_HOME_OF]
__getattr__, __dir__ = lazy.attach(__name__, {name: f"{__name__}.{home}" for name, home in _HOME_OF.items()})
