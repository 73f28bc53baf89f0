"""Graph -> Graph: each pass is a function that returns a new graph."""

from .bind import bind as bind
from .bind import dims_of as dims_of
from .dead import without_dead as without_dead
from .fold import fold as fold
from .products import turn_products as turn_products
from .scales import join_scales as join_scales
