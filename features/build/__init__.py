"""The bench campaign: tiny models, tasks, paired fine-tuning runs, kill test and clean variants."""
