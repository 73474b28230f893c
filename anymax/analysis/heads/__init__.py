"""What the heads of attention of a trained model do: how many keys they keep, how they differ, which have a role."""
