"""Embed a collection on several devices by the Trainer's distributed predict. Each rank commits its own part."""

import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch.multiprocessing.spawn import ProcessRaisedException
from torch.utils.data import DataLoader

from vitkit.retrieval.loader import EntryBatch, make_loader
from vitkit.retrieval.lock import lock_rank
from vitkit.retrieval.writer import IndexCounts, IndexJob, IndexWriter, embed_here

COUNTED = ("encoded", "captions", "reused", "failed", "cut")


class DistributedEmbedding(NamedTuple):
    """Embeds a collection on several devices, one process each; on fewer if there are fewer batches."""

    devices: int

    def __call__(self, job: IndexJob) -> IndexCounts:
        device = next(job.embedder.parameters()).device
        ranks = min(self.devices, len(job.make_batches()))
        if ranks < 2:
            return embed_here(job)
        counts = torch.zeros(ranks, len(COUNTED), dtype=torch.int64).share_memory_()
        on_cpu = device.type == "cpu"
        trainer = Trainer(
            accelerator="cpu" if on_cpu else "auto",
            devices=ranks,
            # LanceDB's threads do not survive a fork.
            strategy=DDPStrategy(start_method="spawn", process_group_backend="gloo" if on_cpu else None),
            use_distributed_sampler=False,
            enable_progress_bar=sys.stderr.isatty(),
            **dict.fromkeys(("logger", "enable_checkpointing", "enable_model_summary"), False),
        )
        job.embedder.cpu()
        try:
            trainer.predict(EmbeddingModule(job, counts), return_predictions=False)
        except ProcessRaisedException as error:
            kind, _, message = str(error).strip().rpartition("\n")[2].partition(": ")
            if kind != ValueError.__name__:
                raise
            raise ValueError(message) from error
        job.embedder.to(device)
        return IndexCounts(**dict(zip(COUNTED, counts.sum(0).tolist(), strict=True)))


class EmbeddingModule(LightningModule):
    """Embeds the batches of one rank. Args: counts: (ranks, COUNTED) in shared memory; each rank fills its own row."""

    def __init__(self, job: IndexJob, counts: torch.Tensor) -> None:
        super().__init__()
        self.embedder = job.embedder  # a submodule, so that the Trainer moves it
        self.job = job
        self.counts = counts

    def setup(self, stage: str) -> None:
        for message in ("does not have many workers", "predict returned None"):
            warnings.filterwarnings("ignore", f".*{message}")
        torch.set_num_threads(max(1, torch.get_num_threads() // self.trainer.world_size))
        # Not earlier: locks and LanceDB's tables belong to the process that opens them.
        self.lock = lock_rank(Path(self.job.path), self.global_rank)
        self.writer = IndexWriter(self.job.select_rank(self.global_rank, self.trainer.world_size))

    def predict_dataloader(self) -> DataLoader[EntryBatch]:
        return make_loader(self.writer.job.make_batches(), self.job.reading.workers)

    def transfer_batch_to_device(self, batch: EntryBatch, device: torch.device, dataloader_idx: int) -> EntryBatch:
        return batch  # the embedder moves what it needs

    def predict_step(self, batch: EntryBatch) -> None:
        self.writer.add(batch)

    def on_predict_end(self) -> None:
        self.writer.flush()
        for note in self.writer.counts.notes:
            print(f"note: {note}", file=sys.stderr)
        self.counts[self.global_rank] = torch.tensor([getattr(self.writer.counts, name) for name in COUNTED])

    def teardown(self, stage: str) -> None:
        self.lock.release()
