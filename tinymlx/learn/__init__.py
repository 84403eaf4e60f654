"""The course: its days, the learner's functions in the place of the product's, and their grading."""
