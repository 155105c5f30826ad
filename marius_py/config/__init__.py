"""Settings (floor 5): dataclasses with ranges, hydra composition, classes named in YAML."""

from marius_py.config.compose import CONFIG_FILE, compose, conf_dir, load_config, read_yaml, write_yaml
from marius_py.config.fields import Component, build, plain
from marius_py.config.registry import Components, make_components
from marius_py.config.schema import (
    CheckpointConfig,
    DatasetConfig,
    EvaluateConfig,
    EvaluationConfig,
    InputConfig,
    ModelConfig,
    NegativesConfig,
    OptimizerConfig,
    OrderingConfig,
    PipelineConfig,
    PrepareConfig,
    RegularizerConfig,
    StorageConfig,
    TrainConfig,
    TrainingConfig,
    check_buffer,
)

__all__ = [
    "CONFIG_FILE",
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
    "compose",
    "conf_dir",
    "load_config",
    "make_components",
    "plain",
    "read_yaml",
    "write_yaml",
]
