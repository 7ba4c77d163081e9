"""Speech and recurrent networks: wav2vec2, Whisper, LSTM and GRU language models, packed sequences, CTC."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC, WhisperConfig, WhisperForConditionalGeneration


def wav2vec2_ctc_fp32(device, *, samples=80000, layers=12):
    torch.manual_seed(0)
    np.random.seed(0)  # the library draws its time masks from numpy's global state
    config = Wav2Vec2Config(num_hidden_layers=layers, ctc_zero_infinity=True, layerdrop=0.0)
    model = Wav2Vec2ForCTC(config).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(batch_size):
        audio = torch.randn(batch_size, samples, device=device)
        labels = torch.randint(1, 32, (batch_size, 30), device=device)
        optimizer.zero_grad()
        model(input_values=audio, labels=labels).loss.backward()
        optimizer.step()

    return step


def whisper_base_bf16amp(device, *, frames=3000, layers=6, target=128):
    torch.manual_seed(0)
    config = WhisperConfig(
        d_model=512,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        max_source_positions=frames // 2,
        use_cache=False,
    )
    model = WhisperForConditionalGeneration(config).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step(batch_size):
        features = torch.randn(batch_size, config.num_mel_bins, frames, device=device)
        labels = torch.randint(0, 50000, (batch_size, target), device=device)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = model(input_features=features, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def lstm_language_model_fp32(device, *, seq=70, hidden=1024, vocab=33278):
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {
            "tokens": nn.Embedding(vocab, hidden),
            "rnn": nn.LSTM(hidden, hidden, 2, dropout=0.5),
            "head": nn.Linear(hidden, vocab),
        }
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    dropout = nn.Dropout(0.5)
    state = None

    def step(batch_size):
        nonlocal state
        tokens = torch.randint(0, vocab, (seq + 1, batch_size), device=device)
        if state is None or state[0].shape[1] != batch_size:
            state = None
        else:
            state = tuple(part.detach() for part in state)
        optimizer.zero_grad()
        output, state = model["rnn"](dropout(model["tokens"](tokens[:-1])), state)
        logits = model["head"](dropout(output))
        loss = nn.functional.cross_entropy(logits.view(-1, vocab), tokens[1:].view(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()

    return step


def gru_language_model_fp16(device, *, seq=100, hidden=768, vocab=20000):
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {
            "tokens": nn.Embedding(vocab, hidden),
            "rnn": nn.GRU(hidden, hidden, 3, dropout=0.2, batch_first=True),
            "head": nn.Linear(hidden, vocab),
        }
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device.type)

    def step(batch_size):
        tokens = torch.randint(0, vocab, (batch_size, seq + 1), device=device)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16):
            output, _ = model["rnn"](model["tokens"](tokens[:, :-1]))
            logits = model["head"](output)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return step


def deep_speech_packed_ctc_fp32(device, *, frames=600, hidden=512, layers=3):
    torch.manual_seed(0)
    front = nn.Sequential(
        nn.Conv2d(1, 32, (41, 11), stride=(2, 2), padding=(20, 5)),
        nn.BatchNorm2d(32),
        nn.Hardtanh(0, 20),
        nn.Conv2d(32, 32, (21, 11), stride=(2, 1), padding=(10, 5)),
        nn.BatchNorm2d(32),
        nn.Hardtanh(0, 20),
    )
    rnn = nn.LSTM(32 * 40, hidden, layers, bidirectional=True)
    model = nn.ModuleList([front, rnn, nn.Linear(2 * hidden, 29)]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, nesterov=True)

    def step(batch_size):
        spectrum = torch.randn(batch_size, 1, 160, frames, device=device)
        lengths = torch.linspace(frames // 2, frames // 4, batch_size).long().clamp(min=1)
        labels = torch.randint(1, 29, (batch_size, 20), device=device)
        label_lengths = torch.full((batch_size,), 20, dtype=torch.long)
        optimizer.zero_grad()
        hidden_states = front(spectrum).flatten(1, 2).permute(2, 0, 1)
        packed, _ = rnn(pack_padded_sequence(hidden_states, lengths))
        output, _ = pad_packed_sequence(packed)
        scores = model[2](output).log_softmax(-1)
        loss = nn.functional.ctc_loss(scores, labels, lengths, label_lengths, zero_infinity=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 400.0)
        optimizer.step()

    return step


def audio_conv1d_adagrad_fp32(device, *, samples=16000, width=128):
    torch.manual_seed(0)
    layers, channels = [], 1
    for index, (outputs, kernel, stride) in enumerate(
        [(width, 80, 4), (width, 3, 1), (2 * width, 3, 1), (4 * width, 3, 1)]
    ):
        layers += [
            nn.Conv1d(channels, outputs, kernel, stride=stride, padding=kernel // 2 if index else 0),
            nn.BatchNorm1d(outputs),
            nn.ReLU(),
            nn.MaxPool1d(4),
        ]
        channels = outputs
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(channels, 35)).to(device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)

    def step(batch_size):
        audio = torch.randn(batch_size, 1, samples, device=device)
        labels = torch.randint(0, 35, (batch_size,), device=device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(audio), labels).backward()
        optimizer.step()

    return step


def lstm_cell_loop_fp32(device, *, seq=48, hidden=1024, classes=20):
    torch.manual_seed(0)
    cell, head = nn.LSTMCell(hidden, hidden).to(device), nn.Linear(hidden, classes).to(device)
    optimizer = torch.optim.RMSprop([*cell.parameters(), *head.parameters()], lr=1e-4)

    def step(batch_size):
        inputs = torch.randn(seq, batch_size, hidden, device=device)
        labels = torch.randint(0, classes, (batch_size,), device=device)
        state = torch.zeros(batch_size, hidden, device=device), torch.zeros(batch_size, hidden, device=device)
        for moment in inputs:
            state = cell(moment, state)
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(state[0]), labels).backward()
        optimizer.step()

    return step
