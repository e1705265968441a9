"""Batch codecs for the APIs that support batching."""

from collections.abc import Mapping
from typing import Final

from headgate.model.ticket import Api
from headgate.wire.batch_codec import BatchCodec
from headgate.wire.embeddings_codec import EMBEDDINGS_CODEC
from headgate.wire.tensors_codec import TENSORS_CODEC

BATCH_CODECS: Final[Mapping[Api, BatchCodec]] = {Api.EMBEDDINGS: EMBEDDINGS_CODEC, Api.INFER: TENSORS_CODEC}
