"""Small pieces that policies share through their options: whom to preempt, how much room an admission needs, ranks."""
