"""What does the operator want? One YAML file in, plain arguments and a policy out."""
