"""The methods and columns of a study's CSV files and tables: one name for each.

A method's name is the value of the column `method` where each error has a row, and the
column of its median error where each head has one.
"""

from nystromformer import landmarks

INDEX_COLUMNS = ["layer", "head", "num_landmarks"]

# The steps with segment means, in their order. The last three are the inverses.
BEST_RANK = "best rank"
BEST_MIDDLE = "best middle matrix"
NYSTROM = "nystrom"
EXACT_INVERSE = "exact inverse"
NO_INVERSE = "no inverse"
STEPS = (BEST_RANK, BEST_MIDDLE, NYSTROM, EXACT_INVERSE, NO_INVERSE)
K_MEANS = "k-means landmarks"
DETERMINISTIC_METHODS = (*STEPS, K_MEANS)
# Random methods, of which several draws are measured.
RANDOM_LANDMARKS = "random landmarks"
STANDARD = "standard Nyström"  # It samples landmarks after the softmax.
STANDARD_ITERATED = "standard Nyström, iterated"
PERFORMER = "performer"
RANDOM_METHODS = (RANDOM_LANDMARKS, STANDARD, STANDARD_ITERATED, PERFORMER)
METHODS = (*DETERMINISTIC_METHODS, *RANDOM_METHODS)

# Of the iterated inverse Z: ‖Z − A⁺‖ / ‖A⁺‖ and ‖A Z A − A‖ / ‖A‖.
INVERSE_ERROR = "inverse_error"
INVERSE_RESIDUAL = "inverse_residual"

# What limits a head, and what this column says.
LIMITED_BY = "limited_by"
NOTHING = ""
RANK = "rank"
LANDMARKS = "landmarks"
INVERSE = "inverse"
UNDEFINED = "undefined"

# The columns of a study's table, and the headings of those that are not their own.
TABLE_COLUMNS = (*METHODS, INVERSE_ERROR, INVERSE_RESIDUAL)
HEADINGS = {
    NYSTROM: "Nyström",
    STANDARD_ITERATED: "iterated",
    PERFORMER: "Performer",
    INVERSE_ERROR: "‖Z − A⁺‖ / ‖A⁺‖",
    INVERSE_RESIDUAL: "‖AZA − A‖ / ‖A‖",
}

# Other methods of landmarks.csv and swaps.csv, beside those of `landmark_choices`.
SEGMENT_MEANS = "segment means"
DOUBLE_SOFTMAX = "double softmax"


def landmark_choices() -> dict[str, str]:
    """Returns the label of each choice of landmarks, by its name in the options.

    Those that a module of --load has registered are among them.
    """
    labels = {name: name.replace("_", " ") for name in landmarks.LANDMARKS}
    return labels | {"kmeans": "k-means"}


def heading_of(column: str) -> str:
    """Returns what stands above a column of a study's table."""
    return HEADINGS.get(column, column)


def spread_of(method: str) -> str:
    """Names the column of a random method's spread.

    The spread is the largest error of its draws over the smallest.
    """
    return f"{method}, spread"
