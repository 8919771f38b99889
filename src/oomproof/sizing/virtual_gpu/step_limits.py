"""How far a script is followed, and what is told beside it. Without torch: the process that waits for it goes by the same figures."""

STEPS = 3  # the first makes the optimizer's state, the second has both, the third is as all that follow
PATIENCE = 3  # times the time limit for the steps themselves: without them there is no answer
ASIDE = "aside"  # the file that names processes which are none of the script's own
MAIN = "main"  # the file that names the script's own process
# of an epoch's batches: the same in every run, from a seed, or drawn from torch's own generator, which is elsewhere on a card (weights draw too)
FIXED, SEEDED, DRAWN = "fixed", "seeded", "drawn"
CARD_TORCH = "OOMPROOF_SIZE_TORCH"  # of the environment: the card's version, where it is known and another
WHOLE_EPOCH = "OOMPROOF_SIZE_EPOCH"  # of the environment: empty where three steps are enough though batches differ in shape
COMPILED = "compiled"  # the file that says that torch.compile was followed
EAGER = "OOMPROOF_SIZE_EAGER"  # of the environment: set where following torch.compile has failed, and it is left out
