"""What the learner and the SFT trainer share: model files, packing, losses, DeepSpeed."""
