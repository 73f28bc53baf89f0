"""Teaches an encoder of sentences to tell topics apart, from texts in a CSV file, and writes it as ONNX.

python examples/sentences/main.py [--lora 8] [--data texts.csv --text text --label topic] [--weights FOLDER] [-o FILE]

The encoder is all-MiniLM-L6-v2 (Wang et al. 2020, Reimers and Gurevych 2019): 22 million parameters under the Apache
licence, which a package of the Python index holds. Any other BERT in Hugging Face's form can take its place.
"""

from __future__ import annotations

import argparse
import csv
import math
from pathlib import Path

from bert import classifier
from weights import fetched

import dataflow as df

HERE = Path(__file__).parent
MOST_TOKENS = 32


def main() -> None:
    """Fine-tunes, saves and prints accuracy before and after."""
    options = parsed()
    folder = Path(options.weights) if options.weights else fetched(Path("~/.cache/dataflow-examples").expanduser())
    train, validation, topics = read(options, folder)
    model = classifier(folder, len(topics), seed=options.seed, layers=options.layers)
    if options.lora:
        model = df.lora(model, rank=options.lora, also=["classifier.*"])
    with df.Trainer(model, "cross_entropy", optimizer(options, len(train)), seed=options.seed) as trainer:
        print(f"before: {described(trainer.evaluate(validation))}")
        trainer.fit(train, epochs=options.epochs, batch_size=options.batch_size)
        print(f"after:  {described(trainer.evaluate(validation))}")
    df.save(df.merge_lora(model) if options.lora else model, options.output, overwrite=True)
    print(f"wrote {options.output}")


def read(options: argparse.Namespace, folder: Path) -> tuple[df.Dataset, df.Dataset, list[str]]:
    """Texts to train on, others to judge by, and the names of the classes."""
    with Path(options.data).open(newline="", encoding="utf-8") as file:
        topics = sorted({row[options.label] for row in csv.DictReader(file)})
    texts = df.Dataset(
        options.data,
        text=options.text,
        label=options.label,
        classes=topics,
        tokenizer=str(folder / "tokenizer.json"),
        max_length=MOST_TOKENS,
        buckets=2,  # lengths that texts are padded to
    )
    return *texts.split(0.4, seed=0), topics


def optimizer(options: argparse.Namespace, samples: int) -> df.optim.AdamW:
    """AdamW whose rate falls to zero after a short warm-up."""
    steps = options.epochs * math.ceil(samples / options.batch_size)
    rate = options.lr or (3e-3 if options.lora else 3e-4)
    return df.optim.AdamW(lr=rate, weight_decay=0.01, schedule=df.schedules.Linear(steps, warmup=steps // 10))


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=str(HERE / "topics.csv"), help="CSV with a column of texts and one of labels")
    parser.add_argument("--text", default="text", help="the column of texts")
    parser.add_argument("--label", default="topic", help="the column of labels")
    parser.add_argument("--weights", help="folder with config.json, model.safetensors and tokenizer.json")
    parser.add_argument("--layers", type=int, help="the first ones of the encoder; all by default")
    parser.add_argument(
        "--lora", type=int, default=0, metavar="RANK", help="train adapters of this rank; 0: everything"
    )
    parser.add_argument("--lr", type=float, help="the learning rate")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", default="topics.onnx", help="the file to write")
    return parser.parse_args(arguments)


def described(figures: dict[str, float]) -> str:
    """Accuracy and loss with their uncertainties, for people."""
    accuracy, error = 100 * figures["accuracy"], 100 * figures["accuracy_error"]
    return f"validation accuracy {accuracy:.1f}% ± {error:.1f}%, loss {figures['loss']:.3f}"


if __name__ == "__main__":
    main()
