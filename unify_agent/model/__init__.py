"""What computes: configuration, attention, MoT decoder, ViT, VAE, embeddings, losses, BAGEL weights in and out."""
