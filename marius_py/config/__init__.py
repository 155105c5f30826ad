"""Settings (floor 5): dataclasses with ranges, hydra composition, classes named in YAML."""

from marius_py.config.compose import compose, config_from, load_config
from marius_py.config.evaluate_schema import EvaluateConfig
from marius_py.config.fields import Component
from marius_py.config.groups import conf_dir
from marius_py.config.learning_schema import (
    ModelConfig,
    NegativesConfig,
    OptimizerConfig,
    RegularizerConfig,
    TrainingConfig,
)
from marius_py.config.machine_schema import (
    AUTO,
    OrderingConfig,
    PipelineConfig,
    StorageConfig,
    check_buffer,
    check_order,
)
from marius_py.config.prepare_schema import DatasetConfig, InputConfig, PrepareConfig
from marius_py.config.registry import Components, make_components, make_regularizers
from marius_py.config.regularization import with_penalties
from marius_py.config.saved import read_yaml, saved_settings, write_yaml
from marius_py.config.schema import CheckpointConfig, EvaluationConfig, TrainConfig
from marius_py.config.sections import build, plain
from marius_py.config.words import NOTES, words_of

__all__ = [
    "AUTO",
    "NOTES",
    "CheckpointConfig",
    "Component",
    "Components",
    "DatasetConfig",
    "EvaluateConfig",
    "EvaluationConfig",
    "InputConfig",
    "ModelConfig",
    "NegativesConfig",
    "OptimizerConfig",
    "OrderingConfig",
    "PipelineConfig",
    "PrepareConfig",
    "RegularizerConfig",
    "StorageConfig",
    "TrainConfig",
    "TrainingConfig",
    "build",
    "check_buffer",
    "check_order",
    "compose",
    "conf_dir",
    "config_from",
    "load_config",
    "make_components",
    "make_regularizers",
    "plain",
    "read_yaml",
    "saved_settings",
    "with_penalties",
    "words_of",
    "write_yaml",
]
