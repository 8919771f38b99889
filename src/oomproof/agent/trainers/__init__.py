"""The hooks of the trainers: one file for each, loaded when the job imports that trainer."""
