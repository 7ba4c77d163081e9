"""The zoo: training steps that ship with whichgpu, and the adapters for model libraries.

This file is the table alone, so that listing the zoo imports no torch. Each entry is one file; its docstring
holds the settings and where they come from, and its `SETTINGS` the same as options. How large each model is, and
how much it computes, stands in data/zoo.json, counted by tools/count_zoo.py. The adapters (`timm_models`,
`torchvision_models`, `hf_models`) build any architecture of their library; `training` is the step that all share.
"""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """Where a zoo workload lives: `target` is "module:function", a function of its options."""

    target: str
    description: str
    sets: tuple[str, ...] = ()  # of SETS
    article: str | None = None  # its row in the published tables of 2020


# What `--set NAME` means; a workload says itself which it belongs to
SETS: dict[str, str] = {
    "2020": 'the models of "Choosing the Best GPU for Deep Learning in 2020"',
    "2026": "what is trained today",
    "vision": "images: recognised, segmented, generated",
    "language": "text: pre-training, fine-tuning, translation",
}

ENTRIES: dict[str, Entry] = {
    "bert-base": Entry(
        "whichgpu.zoo.bert_base:build",
        "BERT-base masked-LM and next-sentence pre-training, sequence 128, fp32, AdamW",
        ("2020", "language"),
        "BERT Base",
    ),
    "bert-finetune": Entry(
        "whichgpu.zoo.bert_finetune:build",
        "BERT-base fine-tuning on SQuAD question answering, sequence 384, fp32, AdamW",
        ("2020", "language"),
        "BERT Finetune",
    ),
    "convnext-large": Entry(
        "whichgpu.zoo.convnext_large:build",
        "ConvNeXt-L image classification, 224 x 224, fp32, AdamW, averaged weights",
        ("2026", "vision"),
    ),
    "dit-xl": Entry(
        "whichgpu.zoo.dit_xl:build",
        "DiT-XL/2 class-conditional image generation, 256 x 256, TF32, AdamW, averaged weights",
        ("2026", "vision"),
    ),
    "dlrm": Entry(
        "whichgpu.zoo.dlrm:build",
        "DLRM recommendation on Criteo Terabyte, 104 million rows of 64, fp32, SGD",
        ("2026",),
    ),
    "gpt2": Entry(
        "whichgpu.zoo.gpt2:build",
        "GPT-2 (124M) language modelling, sequence 1024, bf16 autocast, AdamW",
        ("language",),
    ),
    "graphsage": Entry(
        "whichgpu.zoo.graphsage:build",
        "GraphSAGE node classification on ogbn-products, 3 hops, fp32, Adam",
        ("2026",),
    ),
    "llama3-8b": Entry(
        "whichgpu.zoo.llama3_8b:build",
        "Llama-3-8B full fine-tuning, sequence 4096, bf16, AdamW, checkpointing",
        ("2026", "language"),
    ),
    "llama3-8b-lora": Entry(
        "whichgpu.zoo.llama3_8b_lora:build",
        "Llama-3-8B fine-tuning with LoRA of rank 8, sequence 4096, bf16, AdamW, checkpointing",
        ("2026", "language"),
    ),
    "llava-7b-lora": Entry(
        "whichgpu.zoo.llava_7b_lora:build",
        "LLaVA-1.5-7B vision-language instruction tuning with LoRA, 336 x 336, sequence 2048, bf16, AdamW, checkpointing",
        ("2026", "vision", "language"),
    ),
    "mamba2-370m": Entry(
        "whichgpu.zoo.mamba2_370m:build",
        "Mamba-2 (370M) state-space model, pre-training, sequence 2048, bf16 autocast, AdamW",
        ("2026", "language"),
    ),
    "nasnet-large": Entry(
        "whichgpu.zoo.nasnet_large:build",
        "NASNet-A-Large image classification, 331 x 331, fp32, SGD with momentum",
        ("2020", "vision"),
        "NasNet Large",
    ),
    "olmo2-1b": Entry(
        "whichgpu.zoo.olmo2_1b:build",
        "OLMo-2-1B pre-training, sequence 4096, bf16 autocast, AdamW",
        ("2026", "language"),
    ),
    "olmoe-1b-7b": Entry(
        "whichgpu.zoo.olmoe_1b_7b:build",
        "OLMoE-1B-7B mixture of experts, pre-training, sequence 4096, bf16, AdamW",
        ("2026", "language"),
    ),
    "resnet50": Entry(
        "whichgpu.zoo.resnet50:build",
        "ResNet-50 image classification, 224 x 224, fp32, SGD with momentum",
        ("vision",),
    ),
    "rt-detr": Entry(
        "whichgpu.zoo.rt_detr:build",
        "RT-DETR R50 object detection, 640 x 640, fp32, AdamW, averaged weights",
        ("2026", "vision"),
    ),
    "sdxl-unet": Entry(
        "whichgpu.zoo.sdxl:build",
        "U-Net of Stable Diffusion XL, fine-tuning, 1024 x 1024, fp16 autocast, AdamW, checkpointing",
        ("2026", "vision"),
    ),
    "segformer-b5": Entry(
        "whichgpu.zoo.segformer_b5:build",
        "SegFormer-B5 semantic segmentation, 1024 x 1024, fp32, AdamW",
        ("2026", "vision"),
    ),
    "swin-large": Entry(
        "whichgpu.zoo.swin_large:build",
        "Swin-L image classification, 224 x 224, fp16 autocast, AdamW",
        ("2026", "vision"),
    ),
    "vit-base": Entry(
        "whichgpu.zoo.vit_base:build",
        "ViT-B/16 image classification, 224 x 224, fp32, AdamW",
        ("vision",),
    ),
    "vit-large": Entry(
        "whichgpu.zoo.vit_large:build",
        "ViT-L/16 image classification, 224 x 224, fp16 autocast, AdamW",
        ("2026", "vision"),
    ),
    "whisper-large-v3": Entry(
        "whichgpu.zoo.whisper_large:build",
        "Whisper-large-v3 fine-tuning on speech, clips of 30 s, fp16 autocast, AdamW, checkpointing",
        ("2026",),
    ),
    "deeplabv3": Entry(
        "whichgpu.zoo.deeplabv3:build",
        "DeepLabv3+ with Xception-65, semantic segmentation, 513 x 513, fp32, SGD with momentum",
        ("2020", "vision"),
        "DeepLabv3",
    ),
    "yolo-v3": Entry(
        "whichgpu.zoo.yolo_v3:build",
        "YOLOv3 with Darknet-53, object detection, 608 x 608, fp32, SGD with momentum",
        ("2020", "vision"),
        "Yolo v3",
    ),
    "pix2pix-hd": Entry(
        "whichgpu.zoo.pix2pix_hd:build",
        "Pix2PixHD, label map to image, 2048 x 1024, fp32, Adam",
        ("2020", "vision"),
        "Pix2Pix HD",
    ),
    "stylegan": Entry(
        "whichgpu.zoo.stylegan:build",
        "StyleGAN, image generation, 1024 x 1024, fp32, Adam",
        ("2020", "vision"),
        "StyleGAN",
    ),
    "mask-rcnn": Entry(
        "whichgpu.zoo.mask_rcnn:build",
        "Mask R-CNN with ResNet-101 and a feature pyramid, instance segmentation, 800 x 1333, fp32, SGD with momentum",
        ("2020", "vision"),
        "MaskRCNN",
    ),
    "transformer-big": Entry(
        "whichgpu.zoo.transformer_big:build",
        "Transformer-big, English-German translation, sentences of 32, fp16, Adam",
        ("2020", "language"),
        "Transformer Big",
    ),
    "conv-seq2seq": Entry(
        "whichgpu.zoo.conv_seq2seq:build",
        "Convolutional sequence to sequence, English-German translation, sentences of 32, fp32, Nesterov momentum",
        ("2020", "language"),
        "Conv. Seq2Seq",
    ),
    "unsup-mt": Entry(
        "whichgpu.zoo.unsup_mt:build",
        "XLM, unsupervised English-French translation, sentences of 32, fp32, Adam",
        ("2020", "language"),
        "unsupMT",
    ),
    "mt-dnn": Entry(
        "whichgpu.zoo.mt_dnn:build",
        "MT-DNN, BERT-large on a mix of GLUE tasks, sequence 512, fp32, Adamax",
        ("2020", "language"),
        "MT-DNN",
    ),
}
