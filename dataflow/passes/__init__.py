"""Graph -> Graph: each pass is a function that returns a new graph."""

from .bind import bind as bind
from .bind import dims_of as dims_of
from .dead import without_dead as without_dead
from .fold import fold as fold
from .inactive import has_inactive as has_inactive
from .inactive import with_dropout as with_dropout
from .inactive import without_inactive as without_inactive
from .products import turn_products as turn_products
from .scales import join_scales as join_scales
