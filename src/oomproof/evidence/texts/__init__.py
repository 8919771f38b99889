"""What any text says about a death: kernel logs, journals, training logs, in any mix."""
