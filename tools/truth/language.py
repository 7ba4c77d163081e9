"""Transformers on text: encoders, decoders, both, grouped queries, experts, long sequences, odd masks."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)


def bert_mlm_padding_mask_fp16(device, *, seq=256, layers=12):
    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=layers)
    model = BertForMaskedLM(config).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(device.type)

    def step(batch_size):
        tokens = torch.randint(0, config.vocab_size, (batch_size, seq), device=device)
        lengths = torch.randint(seq // 2, seq + 1, (batch_size, 1), device=device)
        mask = (torch.arange(seq, device=device) < lengths).long()
        labels = tokens.masked_fill((torch.rand(batch_size, seq, device=device) > 0.15) | (mask == 0), -100)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16):
            loss = model(input_ids=tokens, attention_mask=mask, labels=labels).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return step


def bert_squad_variable_length_fp32(device, *, layers=12, scale=1):
    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=layers)
    model = BertForQuestionAnswering(config).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5)
    lengths = [128 // scale, 384 // scale, 256 // scale]
    done = 0

    def step(batch_size):
        nonlocal done
        seq = lengths[done % len(lengths)]
        done += 1
        tokens = torch.randint(0, config.vocab_size, (batch_size, seq), device=device)
        start, end = torch.randint(0, seq, (2, batch_size), device=device)
        optimizer.zero_grad()
        model(input_ids=tokens, start_positions=start, end_positions=end).loss.backward()
        optimizer.step()

    return step


def bert_masked_positions_bf16amp(device, *, seq=128, layers=12):
    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=layers)
    model = BertForMaskedLM(config).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)

    def step(batch_size):
        tokens = torch.randint(0, config.vocab_size, (batch_size, seq), device=device)
        chosen = torch.zeros(batch_size, seq, dtype=torch.bool, device=device)
        chosen[:, : seq // 7] = True
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            hidden = model.bert(input_ids=tokens).last_hidden_state
            logits = model.cls(hidden[chosen])
            loss = nn.functional.cross_entropy(logits, tokens[chosen])
        loss.backward()
        optimizer.step()

    return step


def _llama(layers, hidden, heads, kv_heads, seq, *, vocab=32000):
    return LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=int(hidden * 2.75),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=seq,
        use_cache=False,
    )


def llama_gqa_pure_bf16(device, *, seq=1024, layers=12, hidden=1024, heads=16, kv_heads=4):
    torch.manual_seed(0)
    config = _llama(layers, hidden, heads, kv_heads, seq)
    model = LlamaForCausalLM(config).to(device, dtype=torch.bfloat16)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(batch_size):
        tokens = torch.randint(0, config.vocab_size, (batch_size, seq), device=device)
        model(input_ids=tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def llama_gqa_checkpoint_bf16amp(device, *, seq=2048, layers=12, hidden=1024, heads=16, kv_heads=4):
    torch.manual_seed(0)
    config = _llama(layers, hidden, heads, kv_heads, seq)
    model = LlamaForCausalLM(config).to(device)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(batch_size):
        tokens = torch.randint(0, config.vocab_size, (batch_size, seq), device=device)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()

    return step


def qwen3_large_vocabulary_bf16amp(device, *, seq=512, layers=8, hidden=768, vocab=151936):
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=12,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=seq,
        tie_word_embeddings=True,
        use_cache=False,
    )
    model = Qwen3ForCausalLM(config).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(batch_size):
        tokens = torch.randint(0, config.vocab_size, (batch_size, seq), device=device)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()

    return step


class _Block(nn.Module):
    """A pre-norm decoder block with a chosen attention function."""

    def __init__(self, dim, heads, attention, mlp=None):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.project = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = mlp or nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, hidden):
        query, key, value = self.qkv(self.norm1(hidden)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = self.attention(query, key, value)
        hidden = hidden + self.project(mixed.transpose(1, 2).flatten(2))
        return hidden + self.mlp(self.norm2(hidden))


class _Decoder(nn.Module):
    def __init__(self, vocab, seq, dim, blocks, recompute=None):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, dim), nn.Embedding(seq, dim)
        self.dropout = nn.Dropout(0.1)
        self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.recompute = recompute

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.dropout(self.tokens(tokens) + self.positions(positions))
        for block in self.blocks:
            if self.recompute is None:
                hidden = block(hidden)
            else:
                hidden = checkpoint(block, hidden, use_reentrant=self.recompute)
        return self.head(self.norm(hidden))


def _causal(query, key, value):
    return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def _written_out(query, key, value):
    """Attention as it is written in teaching code: scores, mask, softmax, dropout."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    length = scores.shape[-1]
    mask = torch.tril(torch.ones(length, length, dtype=torch.bool, device=scores.device))
    scores = scores.masked_fill(~mask, float("-inf"))
    return nn.functional.dropout(scores.softmax(-1), 0.1) @ value


def _language_step(device, model, optimizer, vocab, seq, *, dtype=None):
    def step(batch_size):
        tokens = torch.randint(0, vocab, (batch_size, seq + 1), device=device)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.view(-1, vocab), tokens[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()

    return step


def long_sequence_bf16amp(device, *, seq=8192, layers=6, dim=768, heads=12, vocab=32000):
    torch.manual_seed(0)
    model = _Decoder(vocab, seq, dim, [_Block(dim, heads, _causal) for _ in range(layers)]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return _language_step(device, model, optimizer, vocab, seq, dtype=torch.bfloat16)


def attention_written_out_tf32(device, *, seq=512, layers=8, dim=512, heads=8, vocab=50304):
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = _Decoder(vocab, seq, dim, [_Block(dim, heads, _written_out) for _ in range(layers)]).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    return _language_step(device, model, optimizer, vocab, seq)


def checkpoint_reentrant_fp32(device, *, seq=1024, layers=12, dim=768, heads=12, vocab=32000):
    torch.manual_seed(0)
    blocks = [_Block(dim, heads, _causal) for _ in range(layers)]
    model = _Decoder(vocab, seq, dim, blocks, recompute=True).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return _language_step(device, model, optimizer, vocab, seq)


def math_attention_bf16amp(device, *, seq=512, layers=8, dim=512, heads=8, vocab=32000):
    torch.manual_seed(0)

    def attention(query, key, value):
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
            return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=0.1)

    model = _Decoder(vocab, seq, dim, [_Block(dim, heads, attention) for _ in range(layers)]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return _language_step(device, model, optimizer, vocab, seq, dtype=torch.bfloat16)


class _RelativeBias(nn.Module):
    """Attention with a learnt bias by distance: the mask needs a gradient."""

    def __init__(self, heads, reach):
        super().__init__()
        self.table, self.reach = nn.Embedding(2 * reach + 1, heads), reach

    def forward(self, query, key, value):
        place = torch.arange(query.shape[-2], device=query.device)
        distance = (place[None] - place[:, None]).clamp(-self.reach, self.reach) + self.reach
        bias = self.table(distance).permute(2, 0, 1).unsqueeze(0).contiguous().to(query.dtype)
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)


def relative_bias_mask_grad_bf16amp(device, *, seq=512, layers=8, dim=512, heads=8, vocab=32000):
    torch.manual_seed(0)
    blocks = [_Block(dim, heads, _RelativeBias(heads, 128)) for _ in range(layers)]
    model = _Decoder(vocab, seq, dim, blocks).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return _language_step(device, model, optimizer, vocab, seq, dtype=torch.bfloat16)


class _Experts(nn.Module):
    """Top-2 routed experts: tokens are gathered by nonzero and added back by index_add."""

    def __init__(self, dim, experts, top=2):
        super().__init__()
        self.router, self.top = nn.Linear(dim, experts, bias=False), top
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim)) for _ in range(experts)
        )

    def forward(self, hidden):
        flat = hidden.reshape(-1, hidden.shape[-1])
        weights, chosen = self.router(flat).softmax(-1).topk(self.top, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        output = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            token, slot = torch.nonzero(chosen == index, as_tuple=True)
            if token.numel() == 0:
                continue
            output = output.index_add(0, token, expert(flat[token]) * weights[token, slot, None])
        return output.view_as(hidden)


def moe_routing_fp32(device, *, seq=512, layers=4, dim=512, heads=8, experts=8, vocab=32000):
    torch.manual_seed(0)
    blocks = [_Block(dim, heads, _causal, _Experts(dim, experts)) for _ in range(layers)]
    model = _Decoder(vocab, seq, dim, blocks).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return _language_step(device, model, optimizer, vocab, seq)


def mixtral_pure_bf16(device, *, seq=1024, layers=6, hidden=768, experts=8):
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=32000,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=12,
        num_key_value_heads=4,
        num_local_experts=experts,
        max_position_embeddings=seq,
        output_router_logits=True,
        use_cache=False,
    )
    model = MixtralForCausalLM(config).to(device, dtype=torch.bfloat16)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(batch_size):
        tokens = torch.randint(0, config.vocab_size, (batch_size, seq), device=device)
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()

    return step


def t5_small_adafactor_fp32(device, *, seq=512, target=128, layers=6):
    torch.manual_seed(0)
    config = T5Config(num_layers=layers, decoder_start_token_id=0, use_cache=False)
    model = T5ForConditionalGeneration(config).to(device)
    model.train()
    optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-2)

    def step(batch_size):
        tokens = torch.randint(1, config.vocab_size, (batch_size, seq), device=device)
        labels = torch.randint(1, config.vocab_size, (batch_size, target), device=device)
        optimizer.zero_grad()
        model(input_ids=tokens, labels=labels).loss.backward()
        optimizer.step()

    return step


def bart_base_fp16(device, *, seq=512, target=128, layers=6):
    torch.manual_seed(0)
    config = BartConfig(
        d_model=768,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
        use_cache=False,
    )
    model = BartForConditionalGeneration(config).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5)
    scaler = torch.amp.GradScaler(device.type)

    def step(batch_size):
        tokens = torch.randint(4, config.vocab_size, (batch_size, seq), device=device)
        labels = torch.randint(4, config.vocab_size, (batch_size, target), device=device)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16):
            loss = model(input_ids=tokens, labels=labels).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def transformer_encoder_masks_fp32(device, *, seq=256, layers=6, dim=512, vocab=30000):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(dim, 8, 2048, dropout=0.1, batch_first=True)
    model = nn.ModuleDict(
        {
            "tokens": nn.Embedding(vocab, dim, padding_idx=0),
            "encoder": nn.TransformerEncoder(layer, layers, enable_nested_tensor=False),
            "head": nn.Linear(dim, vocab),
        }
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98))

    def step(batch_size):
        tokens = torch.randint(1, vocab, (batch_size, seq), device=device)
        lengths = torch.randint(seq // 2, seq + 1, (batch_size, 1), device=device)
        padding = torch.arange(seq, device=device) >= lengths
        causal = torch.triu(torch.ones(seq, seq, dtype=torch.bool, device=device), diagonal=1)
        optimizer.zero_grad()
        hidden = model["encoder"](model["tokens"](tokens), mask=causal, src_key_padding_mask=padding)
        loss = nn.functional.cross_entropy(model["head"](hidden).transpose(1, 2), tokens)
        loss.backward()
        optimizer.step()

    return step


def multihead_attention_weights_bf16amp(device, *, seq=384, dim=512, layers=4):
    torch.manual_seed(0)
    attentions = nn.ModuleList(nn.MultiheadAttention(dim, 8, dropout=0.1, batch_first=True) for _ in range(layers))
    norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(layers))
    model = nn.ModuleList([attentions, norms, nn.Linear(dim, 10)]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch_size):
        hidden = torch.randn(batch_size, seq, dim, device=device)
        labels = torch.randint(0, 10, (batch_size,), device=device)
        padding = torch.zeros(batch_size, seq, dtype=torch.bool, device=device)
        padding[:, seq - seq // 4 :] = True
        blocked = torch.triu(torch.ones(seq, seq, dtype=torch.bool, device=device), diagonal=1)
        entropy = 0.0
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            for attention, norm in zip(attentions, norms, strict=True):
                normed = norm(hidden)
                mixed, weights = attention(
                    normed, normed, normed, key_padding_mask=padding, attn_mask=blocked, need_weights=True
                )
                hidden = hidden + mixed
                entropy = entropy + weights.square().mean()
            loss = nn.functional.cross_entropy(model[2](hidden.mean(1)), labels) + 0.01 * entropy
        loss.backward()
        optimizer.step()

    return step
