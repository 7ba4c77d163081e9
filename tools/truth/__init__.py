"""The truth set: training steps measured on a real GPU, to hold the predictions against.

`CASES` is the explicit table. Each row names a plain function `setup(device) -> step(batch_size)` in a file
of this folder, two batch sizes, and for some a memory limit under which the exact largest batch is searched.
The files of steps import nothing of ours, so that they run wherever PyTorch and the model libraries are.

`held_out` was fixed before anything was measured: the first, fourth, seventh ... row of each family. No rule
or constant of the predictor may be tuned on those rows. The reference family is all known from before, so
none of it is held out.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """One training step of the truth set."""

    name: str
    target: str  # "module:function" in this folder
    batch_sizes: tuple[int, ...]
    family: str
    precision: str  # fp32, tf32, fp16 (autocast with GradScaler), bf16 (autocast) or pure-bf16
    limit_gib: int | None  # allocator limit for the exact largest batch; None: not searched
    held_out: bool
    tiny: dict[str, Any] = field(default_factory=dict)  # arguments that make it small enough for a CPU
    compiled: bool = False  # goes through torch.compile

    def setup(self, *, tiny: bool = False) -> Callable[[Any], Callable[[int], None]]:
        """The setup function; `tiny` binds the small sizes. Imports the file of the step."""
        module, _, function = self.target.partition(":")
        found = getattr(importlib.import_module(f"{__name__}.{module}"), function)
        return (lambda device: found(device, **self.tiny)) if tiny else found


def modules() -> tuple[str, ...]:
    """The files of steps, each once, in table order."""
    return tuple(dict.fromkeys(case.target.partition(":")[0] for case in CASES))


def find(names: list[str]) -> list[Case]:
    """The cases named, in table order; raises KeyError for an unknown name."""
    unknown = set(names) - {case.name for case in CASES}
    if unknown:
        raise KeyError(f"no such case: {', '.join(sorted(unknown))}")
    return [case for case in CASES if case.name in names]


# fmt: off
CASES: tuple[Case, ...] = (
    Case("convnet_fp32", "h200_cases:convnet_fp32",
         (64, 256), "reference", "fp32", 6, held_out=False, tiny={"image_size": 16}),
    Case("bert128_fp32", "h200_cases:bert128_fp32",
         (8, 32), "reference", "fp32", 8, held_out=False, tiny={"seq": 16, "layers": 1}),
    Case("bert128_bf16amp", "h200_cases:bert128_bf16amp",
         (8, 32), "reference", "bf16", 6, held_out=False, tiny={"seq": 16, "layers": 1}),
    Case("gpt2_fp32", "h200_cases:gpt2_fp32",
         (2, 4), "reference", "fp32", None, held_out=False, tiny={"seq": 16, "layers": 1}),
    Case("gpt2_bf16amp", "h200_cases:gpt2_bf16amp",
         (2, 8), "reference", "bf16", 16, held_out=False, tiny={"seq": 16, "layers": 1}),
    Case("resnet50_fp32", "h200_cases:resnet50_fp32",
         (16, 64), "reference", "fp32", 11, held_out=False, tiny={"image_size": 64}),
    Case("resnet50_bf16amp", "h200_cases:resnet50_bf16amp",
         (16, 64), "reference", "bf16", 8, held_out=False, tiny={"image_size": 64}),
    Case("nasnetalarge_fp32", "h200_cases:nasnetalarge_fp32",
         (4, 8), "reference", "fp32", 16, held_out=False, tiny={"image_size": 96}),
    Case("vit_b_fp32", "h200_cases:vit_b_fp32",
         (16, 32), "reference", "fp32", 11, held_out=False),
    Case("convnext_t_amp", "h200_cases:convnext_t_amp",
         (32, 96), "reference", "bf16", 8, held_out=False, tiny={"image_size": 64}),
    Case("alexnet_sgd_fp32", "vision:alexnet_sgd_fp32",
         (256, 1024), "vision", "fp32", 6, held_out=True, tiny={"image_size": 96}),
    Case("vgg16_sgd_tf32", "vision:vgg16_sgd_tf32",
         (16, 48), "vision", "tf32", 11, held_out=False, tiny={"image_size": 64}),
    Case("resnet50_channels_last_fp16", "vision:resnet50_channels_last_fp16",
         (32, 96), "vision", "fp16", 8, held_out=False, tiny={"image_size": 64}),
    Case("mobilenet_v3_rmsprop_fp32", "vision:mobilenet_v3_rmsprop_fp32",
         (48, 160), "vision", "fp32", 6, held_out=True, tiny={"image_size": 64}),
    Case("efficientnet_b0_ema_channels_last_bf16amp", "vision:efficientnet_b0_ema_channels_last_bf16amp",
         (48, 160), "vision", "bf16", 8, held_out=False, tiny={"image_size": 64}),
    Case("swin_tiny_timm_bf16amp", "vision:swin_tiny_timm_bf16amp",
         (24, 64), "vision", "bf16", 8, held_out=False),
    Case("swin_tiny_hf_fp32", "vision:swin_tiny_hf_fp32",
         (12, 32), "vision", "fp32", 6, held_out=True),
    Case("deit_small_fused_clip_fp16", "vision:deit_small_fused_clip_fp16",
         (48, 160), "vision", "fp16", None, held_out=False),
    Case("densenet121_no_tf32_fp32", "vision:densenet121_no_tf32_fp32",
         (12, 40), "vision", "fp32", 8, held_out=False, tiny={"image_size": 64}),
    Case("resnext50_benchmark_fp32", "vision:resnext50_benchmark_fp32",
         (16, 48), "vision", "fp32", 8, held_out=True, tiny={"image_size": 64}),
    Case("mobilenet_v2_benchmark_channels_last_fp16", "vision:mobilenet_v2_benchmark_channels_last_fp16",
         (48, 160), "vision", "fp16", None, held_out=False, tiny={"image_size": 64}),
    Case("resnet18_cifar_adam_forloop_fp32", "vision:resnet18_cifar_adam_forloop_fp32",
         (256, 768), "vision", "fp32", None, held_out=False),
    Case("inception_v3_rmsprop_fp32", "vision:inception_v3_rmsprop_fp32",
         (16, 56), "vision", "fp32", 8, held_out=True),
    Case("vit_base_pure_bf16", "vision:vit_base_pure_bf16",
         (32, 96), "vision", "pure-bf16", 6, held_out=False),
    Case("convnext_small_checkpoint_bf16amp", "vision:convnext_small_checkpoint_bf16amp",
         (48, 160), "vision", "bf16", None, held_out=False, tiny={"image_size": 64}),
    Case("deeplabv3_resnet50_aux_fp32", "detection:deeplabv3_resnet50_aux_fp32",
         (4, 10), "detection", "fp32", 11, held_out=True, tiny={"image_size": 65}),
    Case("fcn_resnet50_bf16amp", "detection:fcn_resnet50_bf16amp",
         (4, 12), "detection", "bf16", None, held_out=False, tiny={"image_size": 64}),
    Case("segformer_b0_fp32", "detection:segformer_b0_fp32",
         (4, 10), "detection", "fp32", 6, held_out=False, tiny={"image_size": 64}),
    Case("retinanet_resnet50_fp32", "detection:retinanet_resnet50_fp32",
         (2, 6), "detection", "fp32", 8, held_out=True, tiny={"image_size": 128}),
    Case("fcos_resnet50_fp32", "detection:fcos_resnet50_fp32",
         (2, 6), "detection", "fp32", None, held_out=False, tiny={"image_size": 128}),
    Case("ssd300_vgg16_fp32", "detection:ssd300_vgg16_fp32",
         (8, 20), "detection", "fp32", None, held_out=False),
    Case("fasterrcnn_resnet50_fp32", "detection:fasterrcnn_resnet50_fp32",
         (2, 5), "detection", "fp32", 8, held_out=True, tiny={"image_size": 128}),
    Case("maskrcnn_resnet50_fp32", "detection:maskrcnn_resnet50_fp32",
         (2, 4), "detection", "fp32", None, held_out=False, tiny={"image_size": 128}),
    Case("fasterrcnn_mobilenet_bf16amp", "detection:fasterrcnn_mobilenet_bf16amp",
         (4, 12), "detection", "bf16", None, held_out=False, tiny={"image_size": 128}),
    Case("detr_matching_fp32", "detection:detr_matching_fp32",
         (4, 12), "detection", "fp32", None, held_out=True, tiny={"image_size": 128}),
    Case("yolo_boolean_targets_fp16", "detection:yolo_boolean_targets_fp16",
         (8, 24), "detection", "fp16", None, held_out=False, tiny={"image_size": 128, "width": 8}),
    Case("unet2d_adam_fp32", "generative:unet2d_adam_fp32",
         (4, 12), "generative", "fp32", 8, held_out=True, tiny={"image_size": 32, "width": 4}),
    Case("unet2d_bilinear_channels_last_bf16amp", "generative:unet2d_bilinear_channels_last_bf16amp",
         (4, 16), "generative", "bf16", 6, held_out=False, tiny={"image_size": 32, "width": 4}),
    Case("unet3d_sgd_fp32", "generative:unet3d_sgd_fp32",
         (1, 3), "generative", "fp32", 11, held_out=False, tiny={"volume": 16, "width": 4, "depth": 3}),
    Case("r3d18_video_fp16", "generative:r3d18_video_fp16",
         (8, 24), "generative", "fp16", 8, held_out=True, tiny={"frames": 8, "image_size": 32}),
    Case("dcgan_two_adams_fp32", "generative:dcgan_two_adams_fp32",
         (512, 1536), "generative", "fp32", 6, held_out=False, tiny={"width": 8}),
    Case("wgan_gradient_penalty_fp32", "generative:wgan_gradient_penalty_fp32",
         (256, 1024), "generative", "fp32", None, held_out=False, tiny={"width": 8}),
    Case("pix2pix_two_scalers_fp16", "generative:pix2pix_two_scalers_fp16",
         (8, 32), "generative", "fp16", None, held_out=True, tiny={"image_size": 32, "width": 4}),
    Case("vqvae_codebook_fp32", "generative:vqvae_codebook_fp32",
         (64, 192), "generative", "fp32", None, held_out=False, tiny={"image_size": 32, "width": 16}),
    Case("ddpm_unet_ema_fp32", "generative:ddpm_unet_ema_fp32",
         (8, 24), "generative", "fp32", 8, held_out=False, tiny={"image_size": 16, "width": 64}),
    Case("ddpm_unet_ema_bf16amp", "generative:ddpm_unet_ema_bf16amp",
         (12, 32), "generative", "bf16", None, held_out=True, tiny={"image_size": 16, "width": 64}),
    Case("dit_b_bf16amp", "generative:dit_b_bf16amp",
         (24, 64), "generative", "bf16", 11, held_out=False,
         tiny={"dim": 128, "heads": 2, "layers": 2, "size": 16}),
    Case("dit_s_fused_tf32", "generative:dit_s_fused_tf32",
         (32, 96), "generative", "tf32", None, held_out=False,
         tiny={"dim": 128, "heads": 2, "layers": 2, "size": 16}),
    Case("bert_mlm_padding_mask_fp16", "language:bert_mlm_padding_mask_fp16",
         (12, 40), "language", "fp16", 8, held_out=True, tiny={"seq": 16, "layers": 1}),
    Case("bert_squad_variable_length_fp32", "language:bert_squad_variable_length_fp32",
         (4, 12), "language", "fp32", None, held_out=False, tiny={"scale": 8, "layers": 1}),
    Case("bert_masked_positions_bf16amp", "language:bert_masked_positions_bf16amp",
         (24, 80), "language", "bf16", None, held_out=False, tiny={"seq": 16, "layers": 1}),
    Case("llama_gqa_pure_bf16", "language:llama_gqa_pure_bf16",
         (2, 8), "language", "pure-bf16", 11, held_out=True,
         tiny={"seq": 16, "layers": 1, "hidden": 64, "heads": 4, "kv_heads": 2}),
    Case("llama_gqa_checkpoint_bf16amp", "language:llama_gqa_checkpoint_bf16amp",
         (1, 4), "language", "bf16", 16, held_out=False,
         tiny={"seq": 16, "layers": 1, "hidden": 64, "heads": 4, "kv_heads": 2}),
    Case("qwen3_large_vocabulary_bf16amp", "language:qwen3_large_vocabulary_bf16amp",
         (2, 6), "language", "bf16", 11, held_out=False,
         tiny={"seq": 16, "layers": 1, "hidden": 64, "vocab": 1000}),
    Case("long_sequence_bf16amp", "language:long_sequence_bf16amp",
         (1, 2), "language", "bf16", 24, held_out=True,
         tiny={"seq": 64, "layers": 1, "dim": 64, "heads": 2, "vocab": 100}),
    Case("attention_written_out_tf32", "language:attention_written_out_tf32",
         (4, 12), "language", "tf32", 8, held_out=False,
         tiny={"seq": 16, "layers": 1, "dim": 64, "heads": 2, "vocab": 100}),
    Case("checkpoint_reentrant_fp32", "language:checkpoint_reentrant_fp32",
         (4, 16), "language", "fp32", None, held_out=False,
         tiny={"seq": 16, "layers": 2, "dim": 64, "heads": 2, "vocab": 100}),
    Case("math_attention_bf16amp", "language:math_attention_bf16amp",
         (8, 24), "language", "bf16", None, held_out=True,
         tiny={"seq": 16, "layers": 1, "dim": 64, "heads": 2, "vocab": 100}),
    Case("relative_bias_mask_grad_bf16amp", "language:relative_bias_mask_grad_bf16amp",
         (8, 24), "language", "bf16", None, held_out=False,
         tiny={"seq": 16, "layers": 1, "dim": 64, "heads": 2, "vocab": 100}),
    Case("moe_routing_fp32", "language:moe_routing_fp32",
         (4, 16), "language", "fp32", 8, held_out=False,
         tiny={"seq": 16, "layers": 1, "dim": 64, "heads": 2, "experts": 4, "vocab": 100}),
    Case("mixtral_pure_bf16", "language:mixtral_pure_bf16",
         (2, 8), "language", "pure-bf16", None, held_out=True,
         tiny={"seq": 16, "layers": 1, "hidden": 96, "experts": 4}),
    Case("t5_small_adafactor_fp32", "language:t5_small_adafactor_fp32",
         (4, 16), "language", "fp32", 8, held_out=False, tiny={"seq": 16, "target": 8, "layers": 1}),
    Case("bart_base_fp16", "language:bart_base_fp16",
         (4, 16), "language", "fp16", None, held_out=False, tiny={"seq": 16, "target": 8, "layers": 1}),
    Case("transformer_encoder_masks_fp32", "language:transformer_encoder_masks_fp32",
         (16, 48), "language", "fp32", None, held_out=True,
         tiny={"seq": 16, "layers": 1, "dim": 64, "vocab": 100}),
    Case("multihead_attention_weights_bf16amp", "language:multihead_attention_weights_bf16amp",
         (32, 96), "language", "bf16", None, held_out=False, tiny={"seq": 16, "dim": 64, "layers": 1}),
    Case("wav2vec2_ctc_fp32", "speech_rnn:wav2vec2_ctc_fp32",
         (2, 6), "speech and recurrent", "fp32", 8, held_out=True, tiny={"samples": 16000, "layers": 1}),
    Case("whisper_base_bf16amp", "speech_rnn:whisper_base_bf16amp",
         (4, 12), "speech and recurrent", "bf16", 8, held_out=False,
         tiny={"frames": 100, "layers": 1, "target": 8}),
    Case("lstm_language_model_fp32", "speech_rnn:lstm_language_model_fp32",
         (32, 128), "speech and recurrent", "fp32", 8, held_out=False,
         tiny={"seq": 5, "hidden": 32, "vocab": 100}),
    Case("gru_language_model_fp16", "speech_rnn:gru_language_model_fp16",
         (32, 128), "speech and recurrent", "fp16", None, held_out=True,
         tiny={"seq": 5, "hidden": 32, "vocab": 100}),
    Case("deep_speech_packed_ctc_fp32", "speech_rnn:deep_speech_packed_ctc_fp32",
         (16, 64), "speech and recurrent", "fp32", None, held_out=False,
         tiny={"frames": 120, "hidden": 16, "layers": 1}),
    Case("audio_conv1d_adagrad_fp32", "speech_rnn:audio_conv1d_adagrad_fp32",
         (128, 384), "speech and recurrent", "fp32", None, held_out=False, tiny={"width": 8}),
    Case("lstm_cell_loop_fp32", "speech_rnn:lstm_cell_loop_fp32",
         (512, 2048), "speech and recurrent", "fp32", None, held_out=True, tiny={"seq": 4, "hidden": 16}),
    Case("dlrm_dense_adagrad_fp32", "recsys_graph:dlrm_dense_adagrad_fp32",
         (4096, 32768), "recommendation and graphs", "fp32", None, held_out=True,
         tiny={"tables": 3, "rows": 100, "dim": 8}),
    Case("dlrm_sparse_adam_fp32", "recsys_graph:dlrm_sparse_adam_fp32",
         (4096, 16384), "recommendation and graphs", "fp32", None, held_out=False,
         tiny={"tables": 3, "rows": 100, "dim": 8}),
    Case("two_tower_in_batch_fp32", "recsys_graph:two_tower_in_batch_fp32",
         (8192, 16384), "recommendation and graphs", "fp32", 8, held_out=False,
         tiny={"users": 100, "items": 100}),
    Case("sequence_recommender_sparse_sgd_fp32", "recsys_graph:sequence_recommender_sparse_sgd_fp32",
         (1024, 4096), "recommendation and graphs", "fp32", None, held_out=True,
         tiny={"items": 100, "dim": 8, "seq": 5}),
    Case("gcn_index_add_fp32", "recsys_graph:gcn_index_add_fp32",
         (100, 400), "recommendation and graphs", "fp32", None, held_out=False,
         tiny={"nodes": 20, "degree": 3}),
    Case("gat_scatter_fp32", "recsys_graph:gat_scatter_fp32",
         (100, 400), "recommendation and graphs", "fp32", 6, held_out=False,
         tiny={"nodes": 20, "degree": 3}),
    Case("graphsage_unique_sampling_fp32", "recsys_graph:graphsage_unique_sampling_fp32",
         (1024, 4096), "recommendation and graphs", "fp32", None, held_out=True,
         tiny={"nodes": 1000, "features": 8, "dim": 8}),
    Case("dgcnn_topk_gather_fp32", "recsys_graph:dgcnn_topk_gather_fp32",
         (8, 24), "recommendation and graphs", "fp32", None, held_out=False,
         tiny={"points": 32, "neighbours": 4}),
    Case("accumulation_clip_resnet34_fp32", "tricks:accumulation_clip_resnet34_fp32",
         (24, 80), "training loop", "fp32", None, held_out=True, tiny={"image_size": 64}),
    Case("zero_grad_keeps_gradients_vit_fp32", "tricks:zero_grad_keeps_gradients_vit_fp32",
         (32, 96), "training loop", "fp32", None, held_out=False, tiny={"name": "vit_tiny_patch16_224"}),
    Case("losses_kept_alive_fp32", "tricks:losses_kept_alive_fp32",
         (48, 160), "training loop", "fp32", None, held_out=False, tiny={"image_size": 64}),
    Case("evaluation_between_steps_resnet34_fp32", "tricks:evaluation_between_steps_resnet34_fp32",
         (32, 96), "training loop", "fp32", None, held_out=True, tiny={"image_size": 64}),
    Case("lbfgs_closure_fp32", "tricks:lbfgs_closure_fp32",
         (16, 64), "training loop", "fp32", None, held_out=False, tiny={"points": 16, "width": 16}),
    Case("second_derivatives_fp32", "tricks:second_derivatives_fp32",
         (8, 32), "training loop", "fp32", None, held_out=False, tiny={"points": 16, "width": 16}),
    Case("lora_gpt2_bf16amp", "tricks:lora_gpt2_bf16amp",
         (2, 6), "training loop", "bf16", 11, held_out=True, tiny={"seq": 16, "layers": 1}),
    Case("lora_llama_frozen_bf16_checkpoint", "tricks:lora_llama_frozen_bf16_checkpoint",
         (4, 16), "training loop", "bf16", 8, held_out=False, tiny={"seq": 16, "layers": 2, "hidden": 64}),
    Case("frozen_backbone_fp32", "tricks:frozen_backbone_fp32",
         (64, 192), "training loop", "fp32", None, held_out=False, tiny={"image_size": 64}),
    Case("distillation_teacher_bf16amp", "tricks:distillation_teacher_bf16amp",
         (48, 160), "training loop", "bf16", None, held_out=True,
         tiny={"image_size": 64, "teacher": "resnet26"}),
    Case("moco_queue_momentum_encoder_fp16", "tricks:moco_queue_momentum_encoder_fp16",
         (96, 320), "training loop", "fp16", None, held_out=False,
         tiny={"image_size": 64, "queue_length": 64}),
    Case("custom_function_mlp_fp32", "tricks:custom_function_mlp_fp32",
         (4096, 16384), "training loop", "fp32", None, held_out=False, tiny={"width": 16}),
    Case("cuda_literal_resnet18_fp16", "tricks:cuda_literal_resnet18_fp16",
         (96, 320), "training loop", "fp16", None, held_out=True, tiny={"image_size": 64}),
    Case("cuda_literal_mlp_mixer_fp32", "tricks:cuda_literal_mlp_mixer_fp32",
         (48, 144), "training loop", "fp32", None, held_out=False),
    Case("compiled_resnet18_fp32", "compiled:compiled_resnet18_fp32",
         (48, 160), "compiled", "fp32", None, held_out=True, tiny={"image_size": 64}, compiled=True),
    Case("compiled_vit_small_bf16amp", "compiled:compiled_vit_small_bf16amp",
         (48, 160), "compiled", "bf16", None, held_out=False,
         tiny={"name": "vit_tiny_patch16_224"}, compiled=True),
    Case("compiled_gpt2_bf16amp", "compiled:compiled_gpt2_bf16amp",
         (4, 16), "compiled", "bf16", None, held_out=False, tiny={"seq": 16, "layers": 1}, compiled=True),
    Case("compiled_bert_fp32", "compiled:compiled_bert_fp32",
         (32, 128), "compiled", "fp32", None, held_out=True, tiny={"seq": 16, "layers": 1}, compiled=True),
    Case("compiled_mlp_whole_step_fp32", "compiled:compiled_mlp_whole_step_fp32",
         (4096, 16384), "compiled", "fp32", None, held_out=False,
         tiny={"width": 16, "layers": 2}, compiled=True),
)
# fmt: on
