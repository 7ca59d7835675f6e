package main

func Example() {
	main()
	// Output:
	// step 0: loss 3.21
	// step 20: loss 0.17
	// step 40: loss 0.03
	// step 60: loss 0.02
}
