"""Which APIs can be batched, and how are their requests joined and their answers taken apart?"""

from collections.abc import Mapping
from typing import Final

from headgate.model.ticket import Api
from headgate.wire.batches import Joinery
from headgate.wire.embeddings import EMBEDDINGS
from headgate.wire.tensors import TENSORS

BATCHED: Final[Mapping[Api, Joinery]] = {Api.EMBEDDINGS: EMBEDDINGS, Api.INFER: TENSORS}
